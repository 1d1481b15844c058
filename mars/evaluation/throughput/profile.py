"""Where the time of a forward goes: linear layers, attention, other operations, and the rest.

PyTorch's profiler gives the time of each kind of operation; a run without it gives the seconds.
What is left of these is Python and the dispatch of operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from mars.decoding.contract import Work
from mars.evaluation.throughput.methods import Batch, Method
from mars.measurement import clock

COLUMNS = (
    "study", "seed", "scale", "part", "acceptance", "batch_size", "method", "cache", "cache_block",
    "draft", "scheduling", "model_forwards", "model_tokens", "ms", "linear_ms", "attention_ms",
    "other_ms",
)  # fmt: skip
"""Of the CSV: a row per method and batch size; milliseconds are of a forward of the batch."""

PROFILED = {("generate", "dynamic", ""), ("ar", "cursor", ""), ("mars", "cursor", "B")}
"""Method, cache and draft: ours, and what it is held against."""

_LINEAR = ("addmm", "mm", "linear", "_linear_pointwise", "_addmm_activation")
_ATTENTION = ("bmm", "baddbmm", "_softmax", "softmax")


def profile_run(method: Method, batches: Sequence[Batch], device: str) -> dict[str, float]:
    """Milliseconds a forward, by kind of operation, and how many forwards and columns there were.

    Of a method that is warm. On a GPU the kinds are of the device's time.
    """
    method.decoder.work = Work()
    began = clock(device)
    method.run(batches)
    seconds = clock(device) - began
    work: Work = method.decoder.work
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities) as seen:
        method.run(batches)
        clock(device)
    spent = _by_kind(seen.key_averages(), device)
    forwards = max(work.forwards, 1)
    return {
        "model_forwards": work.forwards,
        "model_tokens": work.tokens,
        "ms": round(1e3 * seconds / forwards, 4),
        **{f"{kind}_ms": round(total / forwards, 4) for kind, total in spent.items()},
    }


def _by_kind(events: Iterable[Any], device: str) -> dict[str, float]:
    """Milliseconds of a profile's events, by kind of operation.

    On a GPU a kernel is an event of its own, and in the time of the operation that started it
    too: only operations are counted.
    """
    spent = dict.fromkeys(("linear", "attention", "other"), 0.0)
    for event in events:
        if device == "cpu":
            micro = event.self_cpu_time_total
        elif event.device_type == DeviceType.CUDA:
            continue
        else:
            micro = event.self_device_time_total
        spent[_kind(event.key)] += micro / 1e3
    return spent


def _kind(operation: str) -> str:
    """Of an operation by its name, such as ``aten::addmm``."""
    name = operation.rsplit("::", 1)[-1]
    if name in _ATTENTION or "scaled_dot_product" in name:
        return "attention"
    return "linear" if name in _LINEAR else "other"


def row(values: dict[str, Any]) -> dict[str, Any]:
    """A row of the CSV."""
    return {column: "" if values[column] is None else values[column] for column in COLUMNS}
