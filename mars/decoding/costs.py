"""What a forward costs on this machine, as a function of the rows and columns in it.

Measured once a model, device and number of threads, and kept in a small JSON file with the
machine's name, so that what was chosen by it can be chosen again (``drafts.DraftLength``).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mars.decoding.acceptance import predict
from mars.decoding.backbone import Backbone, Spans
from mars.decoding.caches import CursorCache
from mars.decoding.contract import DecodingError, Work
from mars.measurement import machine_name

SPREAD = 0.4
"""Windows differ by what each row accepted: half of the rows are measured wider, half narrower, by
this share of the columns beyond the first. (At 1.8 of 4 tokens, 4.8 columns are 4 to 7.)"""

CELL_SECONDS = 0.4
"""Time spent on one entry of the table, about."""

RUN = 4
"""Calls in a row, of which the first is not timed: it finds in the processor's caches what another
entry left there. A small forward after a large one takes a fifth longer than after one of its own
size, as decoding has them."""


@dataclass(frozen=True)
class CostTable:
    """Seconds of a forward.

    Attributes:
        machine: name of the processor or GPU; threads: of the CPU.
        checkpoint, dtype, linears: what was measured.
        length: columns that each row had in the cache.
        body: rows → columns a row, on average → seconds of the model's body.
        head: rows → predictions a row → seconds of LM head, softmax and acceptance.
    """

    machine: str
    threads: int
    checkpoint: str
    dtype: str
    linears: str
    length: int
    body: dict[int, dict[int, float]]
    head: dict[int, dict[int, float]]

    def seconds(self, rows: int, columns: float, predictions: float) -> float:
        """Of a step of ``rows`` rows with so many columns and predictions each.

        Between the measured points it is linear, beyond them the last two's line goes on.
        """
        return _at(self.body, rows, columns) + _at(self.head, rows, predictions)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def save(self, path: Path) -> None:
        """Write as JSON."""
        Path(path).write_text(self.text(), encoding="utf-8")

    @classmethod
    def parse(cls, read: Mapping[str, Any]) -> CostTable:
        """From what JSON makes of one, whose keys are text."""
        lines = {
            name: {
                int(rows): {int(x): float(y) for x, y in line.items()}
                for rows, line in read[name].items()
            }
            for name in ("body", "head")
        }
        return cls(**{**read, **lines})

    @classmethod
    def load(cls, path: Path) -> CostTable:
        """Read what ``save`` wrote. Raises DecodingError, naming file and remedy."""
        try:
            return cls.parse(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DecodingError(
                f"{path}: not a table of costs ({error}): delete it, it is measured again"
            ) from None


def _at(table: dict[int, dict[int, float]], rows: int, x: float) -> float:
    sizes = sorted(table)
    lines = [_line(list(table[size]), list(table[size].values()), x) for size in sizes]
    return max(_line(sizes, lines, rows), 0.0)


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    if len(xs) > 1 and x > xs[-1]:
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        return ys[-1] + slope * (x - xs[-1])
    return float(np.interp(x, xs, ys))


def measure_costs(
    backbone: Backbone,
    mask_id: int,
    sizes: Sequence[int],
    width: int,
    *,
    length: int = 128,
    checkpoint: str = "",
    linears: str = "stock",
) -> CostTable:
    """Measure what steps cost that draft up to ``width`` tokens.

    Args:
        backbone: the model; mask_id: the id of ``[MASK]``.
        sizes: the numbers of rows.
        width: B; windows of 1 to 2B − 1 columns, on average, and 1 to B predictions are measured.
        length: columns each row has in the cache.
        checkpoint, linears: noted in the table.
    """
    work, backbone.work = backbone.work, Work()
    length = max(1, min(length, backbone.positions - 3 * width))
    body: dict[int, dict[int, float]] = {}
    head: dict[int, dict[int, float]] = {}
    with torch.inference_mode():
        for rows in sorted({1, *sizes}):  # a batch ends with few rows, whatever it began with
            cache = CursorCache(backbone.layers, rows, length + 3 * width)
            calls: dict[int, Callable[[], torch.Tensor]] = {}
            for columns in range(1, 2 * width):
                calls[columns] = _body_call(backbone, cache, rows, columns, length)
            body[rows] = _medians(calls, backbone.device)
            hidden = calls[2 * width - 1]()
            read = {d: hidden.repeat(1, d, 1) for d in range(1, width + 1)}
            head[rows] = _medians(
                {d: _head_call(backbone, states, mask_id) for d, states in read.items()},
                backbone.device,
            )
    backbone.work = work
    return CostTable(
        machine=machine_name(backbone.device),
        threads=torch.get_num_threads(),
        checkpoint=checkpoint,
        dtype=str(hidden.dtype).removeprefix("torch."),
        linears=linears,
        length=length,
        body=body,
        head=head,
    )


def _body_call(
    backbone: Backbone, cache: CursorCache, rows: int, columns: int, length: int
) -> Callable[[], torch.Tensor]:
    """A forward of so many columns a row on average, as steps have them: of different widths."""
    spread = round(SPREAD * (columns - 1)) * (-1) ** np.arange(rows)
    spread[rows // 2 * 2 :] = 0  # an odd row has the average
    start = np.full(rows, length)
    spans = Spans(start, start + columns + spread)
    place = (length + torch.arange(spans.width, device=backbone.device)).repeat(rows, 1)
    ids, seen = torch.zeros_like(place), torch.from_numpy(spans.widths - 1).to(place.device)
    return lambda: backbone.read(ids, place, seen[:, None], spans, cache)  # type: ignore[arg-type]


def _head_call(backbone: Backbone, hidden: torch.Tensor, mask_id: int) -> Callable[[], object]:
    return lambda: predict(backbone.logits(hidden), "probability", mask_id)


def _medians(calls: Mapping[int, Callable[[], object]], device: torch.device) -> dict[int, float]:
    """Median seconds of each call; they take turns, so that a slow spell falls on all."""
    slowest = max(_seconds(call, device) for call in calls.values())  # warms up, too
    turns = int(min(max(CELL_SECONDS / max(slowest, 1e-6) / RUN, 2), 15))
    taken: dict[int, list[float]] = {key: [] for key in calls}
    for _ in range(turns):
        for key, call in calls.items():
            taken[key] += [_seconds(call, device) for _ in range(RUN)][1:]
    return {key: statistics.median(times) for key, times in taken.items()}


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
