"""What `mars data` tells of a study's data: counts, lengths, dropped rows, examples in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.config import Data
from mars.data.encoding import Encoded
from mars.data.examples import Examples, Table
from mars.data.prepare import check_enough, load_examples, load_table, stage_spans
from mars.data.sources import DataError, Source
from mars.streams import block_ids, block_phase

BARS = 10
"""At most so many bars a histogram."""


def preview(
    data: Data,
    tokenizer: Tokenizer,
    stages: Sequence[int],
    seed: int,
    *,
    show: int,
    block_size: int,
    processes: int | None = None,
) -> tuple[dict[str, Any], DataError | None]:
    """What is to be told, as plain JSON values; and what is wrong, where a stage has too few.

    Args:
        data: where the examples come from.
        tokenizer: of the base checkpoint.
        stages: those to tell of.
        seed: of the toy world and of the blocks' phases.
        show: examples to render, of each stage.
        block_size: B of their blocks.
        processes: as for ``load_examples``.
    """
    if block_size < 1:
        raise DataError(f"block size {block_size}: it must be at least 1")
    wrong: DataError | None = None
    source: Source | None = None
    found: dict[int, Examples] = {}
    if data.source == "embedded":
        for stage in stages:
            found[stage] = load_examples(data, tokenizer, [stage], seed, processes=processes)
    else:
        source, table = load_table(data, tokenizer, processes=processes)
        for stage in stages:
            start, stop = (min(edge, len(table)) for edge in stage_spans(data)[stage])
            found[stage] = Examples(table, np.arange(start, stop))
            try:
                check_enough(data, source, table, stage)
            except DataError as error:
                wrong = wrong or error
    told = {
        "source": data.source,
        "unit": source.unit if source else "conversation",
        "max_length": data.max_length,
        "seed": seed,
        "block_size": block_size,
        "stages": {
            str(stage): {
                **_counts(examples),
                "examples": [
                    _example(tokenizer, examples, i, seed, block_size)
                    for i in range(min(show, len(examples)))
                ],
            }
            for stage, examples in found.items()
        },
        **_report(source, next(iter(found.values())).table),
    }
    return told, wrong


def _report(source: Source | None, table: Table) -> dict[str, Any]:
    """Rows read and dropped; the toy world has no bad ones."""
    if source is None:
        return {}
    told = table.report.as_json()
    for found in told["dropped"].values():
        found["first"] = source.where(found["first"])
    return told


def _counts(examples: Examples) -> dict[str, Any]:
    tokens, table = examples.lengths(), examples.table
    response = table.response_lengths()[examples.order]
    return {
        "conversations": len(examples),
        "responses": int(table.responses()[examples.order].sum()),
        "tokens": int(tokens.sum()),
        "prompt_tokens": int(tokens.sum() - response.sum()),
        "response_tokens": int(response.sum()),
        "cut": int((~table.ended[examples.order]).sum()),
        "lengths": histogram(tokens),
        "response_lengths": histogram(response),
    }


def histogram(values: np.ndarray) -> list[tuple[int, int, int]]:
    """(first, last, count) of bars of one round width from 0 on; none of no values.

    Args:
        values: (N,) counts, none negative.
    """
    if not len(values):
        return []
    highest = int(values.max())
    widths = (round_ * 10**power for power in range(12) for round_ in (1, 2, 5))
    width = next(w for w in widths if w * BARS > highest)
    counts = np.bincount(values // width)
    return [(i * width, (i + 1) * width - 1, int(count)) for i, count in enumerate(counts)]


def _example(
    tokenizer: Tokenizer, examples: Examples, index: int, seed: int, block_size: int
) -> dict[str, Any]:
    """One example with its blocks, as the first epoch of a run over its stage alone has them."""
    example = examples[index]
    turns = int(example.turn.max()) + 1
    phases = [block_phase(seed, 0, index, turn, block_size) for turn in range(turns)]
    block = block_ids(example.turn, block_size, phases)
    return {
        "index": index,
        "row": int(examples.table.row[examples.order[index]]),
        "ended": example.ended,
        "phases": phases,
        "ids": example.ids.tolist(),
        "turn": example.turn.tolist(),
        "block": block.tolist(),
        "pieces": list(_pieces(tokenizer, example, block.tolist())),
    }


def _pieces(
    tokenizer: Tokenizer, example: Encoded, block: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """(turn, text) of each block of a response, and of what lies between responses (turn −1).

    A text is what the tokens up to its end add to those before it, since what a token reads as
    may depend on the one before.
    """
    ids, turns = example.ids.tolist(), example.turn.tolist()
    end, before = 0, ""
    keys = ((t, b if t >= 0 else -1) for t, b in zip(turns, block, strict=True))
    for (turn, _), members in groupby(keys):
        end += len(list(members))
        text = str(tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False))
        yield turn, text[len(before) :]
        before = text
