"""Where a grid was measured: the manifest beside it, and the memory that each method takes."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import torch

from mars.config import Throughput
from mars.decoding.costs import CostTable
from mars.evaluation.throughput.methods import Batch, Method, Models
from mars.measurement import Ceilings, most_allocated, versions


def peak_memory_mb(method: Method, batch: Batch, device: str) -> float:
    """MiB held at their most while a method decodes a batch, in a pass that is not timed.

    On a CPU of its own tensors, counted one by one: weights, cache and activations. On a GPU of
    all that PyTorch holds there, the other methods' weights included.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        method.decode(batch)
        return torch.cuda.max_memory_allocated() / 2**20
    return (_bytes_of(method.model) + most_allocated(lambda: method.decode(batch))) / 2**20


def _bytes_of(model: torch.nn.Module) -> int:
    """Of parameters, buffers, and what a layer keeps beside them, as a weight packed for oneDNN."""
    held = [*model.parameters(), *model.buffers()]
    held += [value for module in model.modules() for value in vars(module).values()]
    tensors = {id(one): one for one in held if isinstance(one, torch.Tensor)}
    return sum(one.nbytes for one in tensors.values())


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
