"""Loads what is measured, and measures what the measurement itself needs to know."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mars.config import Throughput
from mars.decoding.backbone import Backbone
from mars.decoding.costs import CostTable, measure_costs
from mars.decoding.linears import choose_linears
from mars.evaluation.source import Source
from mars.evaluation.throughput.methods import Models
from mars.measurement import Partial
from mars.models import mask_token_id


def load_models(
    grid: Throughput, ours: Source, theirs: Source, again: Source, partial: Partial
) -> Models:
    """Load the checkpoints, each once where it can be shared, and give them their linears.

    Which linears measured faster is asked once a measurement: an interrupted one goes on with the
    answer it had.

    Args:
        grid: has the wish.
        ours, theirs: the MARS and the AR checkpoint.
        again: the AR checkpoint once more, for ``transformers``: binding a model to our decoders
            changes it.
        partial: keeps the answer.
    """
    mars = _load(ours)
    ar = mars if ours.checkpoint == theirs.checkpoint else _load(theirs)
    if "linears" not in partial:
        partial.keep("linears", choose_linears(mars, grid.linears))
    else:
        choose_linears(mars, partial["linears"])
    chosen = partial["linears"]
    if ar is not mars:
        choose_linears(ar, chosen)
    return Models(
        mars=mars,
        ar=ar,
        stock=_load(again),
        tokenizer=ours.tokenizer,
        ar_tokenizer=theirs.tokenizer,
        checkpoint=ours.checkpoint,
        ar_checkpoint=theirs.checkpoint,
        linears=chosen,
    )


def _load(source: Source) -> Any:
    assert source.load is not None  # a source that may not load is for re-scoring only
    model = source.load()
    mask_token_id(model, source.tokenizer)  # may add a row to the table: now, before any packing
    return model


def table_of_costs(
    grid: Throughput, size: int, models: Models, prompt: int, partial: Partial
) -> CostTable:
    """What a forward of ``models.mars`` costs here; measured once a measurement.

    Args:
        grid: its batch sizes are measured.
        size: B.
        models: the checkpoints.
        prompt: the longest prompt, around which the columns in the cache lie.
        partial: keeps the table.
    """
    if "costs" not in partial:
        sizes = [*grid.batch_sizes, *([grid.continuous.slots] if grid.continuous else [])]
        table = measure_costs(
            Backbone(models.mars, compile=grid.compile),
            mask_token_id(models.mars, models.tokenizer),
            sizes,
            size,
            length=prompt + grid.max_new_tokens // 2,
            checkpoint=models.checkpoint,
            linears=models.linears,
        )
        partial.keep("costs", asdict(table))
    return CostTable.parse(partial["costs"])
