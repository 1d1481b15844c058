"""Uncertainty: document-level bootstrap intervals, paired differences, spread over seeds, repeats.

An interval says what another draw of *documents* would do to a number; it does not cover training
another time. With two or more seeds their spread is reported beside it.

The bootstrap draws the counts of each distinct value from a multinomial, which is the same
distribution as drawing documents with replacement and costs nothing when scores are 0 or 1.
Every draw is seeded by the name of what it estimates, so no number depends on the order in which
tables are made.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weighting = Literal["equal", "size"]

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A measured value; ``draws`` are its bootstrap replicates (empty: no interval known)."""

    value: float
    draws: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    per_seed: dict[int, float] = field(default_factory=dict)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % percentile interval over documents, or None."""
        if not self.draws.size:
            return None
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail])
        return float(low), float(high)

    @property
    def seed_sd(self) -> float | None:
        """Standard deviation over seeds (n − 1), with two or more seeds."""
        if len(self.per_seed) < 2:
            return None
        return float(np.std(list(self.per_seed.values()), ddof=1))


@dataclass(frozen=True)
class Repeated:
    """The median of a quantity over repeats, and its standard deviation (n − 1) over them."""

    value: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Repeated | None:
        """Of the repeats that have a value; None where none has."""
        known = [v for v in values if not np.isnan(v)]
        if not known:
            return None
        sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(float(np.median(known)), sd)


def generator(*key: Hashable) -> np.random.Generator:
    """A random generator named by ``key``: the same name gives the same draws."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def resample_mean(values: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """Bootstrap replicates of a mean, shape (resamples,)."""
    distinct, counts = np.unique(values, return_counts=True)
    n = len(values)
    drawn = rng.multinomial(n, counts / n, size=resamples)
    return (drawn @ distinct) / n


def mean(values: Floats, tasks: NDArray, weighting: Weighting = "equal") -> float:
    """Mean over documents within each sub-task, then over sub-tasks (``size``: over documents)."""
    if weighting == "size":
        return float(np.mean(values))
    return float(np.mean([np.mean(values[tasks == task]) for task in np.unique(tasks)]))


def resample_tasks(
    values: Floats,
    tasks: NDArray,
    rng: np.random.Generator,
    weighting: Weighting = "equal",
    resamples: int = RESAMPLES,
) -> Floats:
    """Bootstrap replicates of :func:`mean`, resampling documents within each sub-task."""
    names, sizes = np.unique(tasks, return_counts=True)
    weights = sizes / sizes.sum() if weighting == "size" else np.full(len(names), 1 / len(names))
    total = np.zeros(resamples)
    for name, weight in zip(names, weights, strict=True):
        total += weight * resample_mean(values[tasks == name], rng, resamples)
    return total


def resample_ratio(
    top: Floats, bottom: Floats, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Floats:
    """Bootstrap replicates of Σ top ÷ Σ bottom, documents drawn in pairs."""
    n = len(top)
    chunk = max(1, 2_000_000 // n)
    out = []
    for start in range(0, resamples, chunk):
        drawn = rng.integers(n, size=(min(chunk, resamples - start), n), dtype=np.int32)
        out.append(top[drawn].sum(axis=1) / bottom[drawn].sum(axis=1))
    return np.concatenate(out)


def average(parts: Sequence[Estimate | None]) -> Estimate | None:
    """The plain mean of several benchmarks' estimates; None unless all are there.

    Documents are resampled within each benchmark. The seeds' values are averaged over the seeds
    that every part has.
    """
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts):
        return None
    value = float(np.mean([part.value for part in found]))
    known = all(part.draws.size for part in found)
    draws = np.mean([part.draws for part in found], axis=0) if known else np.empty(0)
    shared = set.intersection(*(set(part.per_seed) for part in found))
    per_seed = {s: float(np.mean([part.per_seed[s] for part in found])) for s in sorted(shared)}
    return Estimate(value, draws, per_seed)
