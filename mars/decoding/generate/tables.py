"""The cost table of `draft: auto`: given, found among the user's, or measured once and kept."""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mars.decoding.backbone import Backbone
from mars.decoding.contract import DecodingError
from mars.decoding.costs import CostTable, measure_costs
from mars.measurement import machine_name
from mars.models import checkpoint_hash, mask_token_id

log = logging.getLogger(__name__)


def cost_table(
    model: Any, tokenizer: Any, folder: Path | None, linears: str, width: int, rows: int
) -> CostTable:
    """What steps of this model cost on this machine.

    Args:
        model, tokenizer: loaded.
        folder: its checkpoint; None where that is unknown, and so nothing is kept.
        linears: stock or packed.
        width: B; rows: the most in flight.
    """
    sizes = [1]
    while sizes[-1] < rows:
        sizes.append(2 * sizes[-1])
    checkpoint = checkpoint_hash(folder) if folder else ""
    file = _file(model, checkpoint, linears, width, sizes[-1]) if folder else None
    if file is not None and file.exists():
        with suppress(DecodingError):  # a broken one is measured again
            return CostTable.load(file)
    log.warning("measuring what a forward costs here%s", f", once; kept in {file}" if file else "")
    table = measure_costs(
        Backbone(model),
        mask_token_id(model, tokenizer),
        sizes,
        width,
        checkpoint=checkpoint,
        linears=linears,
    )
    if file is not None:
        with suppress(OSError):  # where it cannot be kept, it is measured each time
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{os.getpid()}")
            table.save(temporary)
            os.replace(temporary, file)
    return table


def _file(model: Any, checkpoint: str, linears: str, width: int, rows: int) -> Path:
    """Where the table of these very circumstances lies."""
    where = [machine_name(model.device), torch.get_num_threads(), checkpoint, model.dtype]
    name = hashlib.sha256(repr([*where, linears, width, rows]).encode()).hexdigest()[:16]
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder, "mars", f"costs-{name}.json")
