"""Where a grid was measured: the manifest beside it, and the machine's memory."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import asdict
from typing import Any

import torch

from mars.config import Throughput
from mars.decoding.costs import CostTable
from mars.evaluation.throughput.ceilings import Ceilings
from mars.evaluation.throughput.methods import Models
from mars.measurement import versions


def peak_memory_mb(device: str) -> float:
    """On a GPU of this run; on a CPU of the process so far, which holds every method's model."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def manifest(
    grid: Throughput,
    device: str,
    dtype: str,
    models: Models,
    costs: CostTable,
    ceilings: Ceilings,
    positions: int,
    sessions: list[dict[str, Any]],
) -> dict[str, Any]:
    """Where and how the grid was measured, and of what.

    Args:
        positions: that forced responses may use, whatever the model was trained for.
        sessions: a line each time that the measurement was begun or gone on with.
    """
    trained = models.mars.config.max_position_embeddings
    beyond = f"responses forced to a length use up to {positions} positions, the model has "
    return versions(device, dtype) | {
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "linears": models.linears,
        "compile": grid.compile,
        "peak_gflops_per_s": round(ceilings.flops / 1e9, 1),
        "peak_gbytes_per_s": round(ceilings.bytes / 1e9, 2),
        "positions": beyond + f"{trained}" if positions > trained else trained,
        "checkpoints": {"mars": models.checkpoint, "ar": models.ar_checkpoint},
        "costs": asdict(costs),
        "grid": grid.model_dump(mode="json", exclude={"trace"}),
        "warm_up": "one batch a method and batch size, dropped",
        "order": "methods take turns within each repeat, each repeat begins with another",
        "interruptions": len(sessions) - 1,
        "sessions": {str(number): session for number, session in enumerate(sessions)},
    }
