"""What a run has done so far: totals, the loss curve on disk, and whole trainer checkpoints."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import sys
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mars.training.objectives.base import Counts

log = logging.getLogger(__name__)

COLUMNS = [
    "step",
    "epoch",
    "examples",
    "learning_rate",
    "loss",
    "loss_ar",
    "loss_mask",
    "grad_norm",
    "seconds",
]
_WHOLE = "complete.json"
_PROGRESS = "progress.json"


@dataclass
class Progress:
    """Totals since the first step, and sums since the last row of the curve."""

    counts: Counts = field(default_factory=Counts)
    flops: float = 0.0
    seconds: float = 0.0
    peak_memory_mb: float = 0.0
    steps: int = 0
    loss: float = 0.0
    loss_ar: float = 0.0
    loss_mask: float = 0.0

    def add_counts(self, counts: Counts, flops: float) -> None:
        """Count what one step holds."""
        self.counts = self.counts + counts
        self.flops += flops

    def add_step(self, loss: float, ar: float, mask: float) -> None:
        """Add the losses of one optimizer step."""
        self.steps += 1
        self.loss += loss
        self.loss_ar += ar
        self.loss_mask += mask

    def drain(self) -> tuple[float, float, float]:
        """Mean losses per step since the last call: total, L_AR, L_mask."""
        steps = max(self.steps, 1)
        means = self.loss / steps, self.loss_ar / steps, self.loss_mask / steps
        self.steps, self.loss, self.loss_ar, self.loss_mask = 0, 0.0, 0.0, 0.0
        return means

    def save(self, checkpoint: Path) -> None:
        """Write beside a trainer checkpoint."""
        (checkpoint / _PROGRESS).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, checkpoint: Path) -> Progress:
        """Read what ``save`` wrote."""
        raw = json.loads((checkpoint / _PROGRESS).read_text(encoding="utf-8"))
        return cls(**{**raw, "counts": Counts(**raw["counts"])})

    def summary(self) -> dict[str, float | int | None]:
        """The fields of ``training.json``."""
        c = self.counts
        return {
            "examples": c.examples,
            "clean_tokens": c.clean_tokens,
            "masked_tokens": c.masked_tokens,
            "response_tokens": c.response_tokens,
            "ar_signal_fraction": c.ar_terms / c.terms if c.terms else None,
            "flops": self.flops,
            "seconds": round(self.seconds, 3),
            "peak_memory_mb": round(self.peak_memory_mb, 1),
        }


def peak_memory_mb() -> float:
    """The largest resident size of this process so far (device memory with CUDA)."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)


class Curve:
    """``training.csv``: one row every few steps, flushed as the run goes."""

    def __init__(self, file: Path, resumed_step: int) -> None:
        """Open for appending; rows after the step that is resumed are dropped."""
        self.file = file
        kept = [row for row in read_curve(file) if int(row["step"]) <= resumed_step]
        new = file.with_name(f".{file.name}.new")
        with new.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        os.replace(new, file)

    def write(self, row: dict[str, float | int | str]) -> None:
        """Append one row."""
        with self.file.open("a", newline="", encoding="utf-8") as stream:
            csv.DictWriter(stream, COLUMNS).writerow(row)


def read_curve(file: Path) -> list[dict[str, str]]:
    """The whole rows of a curve; a last line cut short by a kill is left out."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = list(csv.DictReader(lines))
    return [row for row in rows if row["step"].isdigit() and None not in row.values()]


def mark_whole(checkpoint: Path) -> None:
    """Say that a trainer checkpoint is complete: the last thing written, with every file's sum."""
    files = (f for f in sorted(checkpoint.rglob("*")) if f.is_file())
    sums = {str(f.relative_to(checkpoint)): _checksum(f) for f in files}
    new = checkpoint / f".{_WHOLE}"
    new.write_text(json.dumps(sums), encoding="utf-8")
    os.replace(new, checkpoint / _WHOLE)


def newest_whole(folder: Path) -> Path | None:
    """The newest complete trainer checkpoint; broken newer ones are removed, with a warning."""
    found = [p for p in folder.glob("checkpoint-*") if p.name.split("-")[1].isdigit()]
    for checkpoint in sorted(found, key=lambda p: int(p.name.split("-")[1]), reverse=True):
        fault = _fault(checkpoint)
        if fault is None:
            return checkpoint
        log.warning("%s: %s; going on from the one before", checkpoint, fault)
        shutil.rmtree(checkpoint)
    return None


def _fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        sums = json.loads((checkpoint / _WHOLE).read_text(encoding="utf-8"))
        wrong = [name for name, held in sums.items() if _checksum(checkpoint / name) != held]
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        return "was not finished" if missing == _WHOLE else f"{missing} is missing"
    except (OSError, ValueError, AttributeError):
        return "cannot be read"
    return f"{wrong[0]} is damaged" if wrong else None


def _checksum(file: Path) -> str:
    """CRC-32 and size: against faults of a disk, at the speed of a disk."""
    total = 0
    with file.open("rb") as stream:
        while part := stream.read(2**22):
            total = zlib.crc32(part, total)
    return f"{total:08x}-{file.stat().st_size}"
