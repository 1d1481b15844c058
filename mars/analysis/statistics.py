"""Uncertainty: document-level bootstrap, paired differences, seeds, repeats, tests (statistics.md).

An interval says what another draw of *documents* would do to a number and, with two or more seeds,
what training again would. With one seed it does not cover training another time.

Every draw is seeded by a name, so no number depends on the order in which tables are made.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Weighting = Literal["equal", "size"]

RESAMPLES = 2000
LEVEL = 0.95

FEW = 10
"""Replicates beyond 0; of fewer p is not counted but read off a fitted tail."""


@dataclass(frozen=True)
class Estimate:
    """A measured value, and what is known of its uncertainty.

    Attributes:
        value: of several seeds, their mean.
        draws: bootstrap replicates of it over documents (empty: no interval known).
        per_seed: the value of each seed; several of them widen the interval.
    """

    value: float
    draws: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    per_seed: dict[int, float] = field(default_factory=dict)

    @property
    def replicates(self) -> Floats:
        """``draws``, and with several seeds also what the choice of seeds adds to them.

        The mean of k seeds is off by their standard error times a draw of Student's t with k − 1
        degrees of freedom: of two seeds little can be said, and the interval says so.
        """
        error, freedom = self._error
        if not self.draws.size or not error:
            return self.draws
        return self.draws + error * student(freedom, self.draws.size)

    def bounds(self, level: float) -> tuple[float, float] | None:
        """The percentile interval over documents (and seeds) at a level, or None.

        Of a few documents that are all wrong, unseen answers move it off the value itself: it is
        then widened to that.
        """
        if not self.draws.size:
            return None
        tail = (1 - level) / 2
        low, high = np.quantile(self.replicates, [tail, 1 - tail])
        return min(float(low), self.value), max(float(high), self.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval, or None."""
        return self.bounds(LEVEL)

    @property
    def p(self) -> float | None:
        """Two-sided p of the value being 0, from where its replicates lie; None: not known.

        Where too few lie beyond 0 to be counted it is that of the normal fitted to the draws, plus
        Student's t of the seeds.
        """
        if not self.draws.size:
            return None
        replicates = self.replicates
        beyond = min(int((replicates <= 0).sum()), int((replicates >= 0).sum()))
        if beyond < FEW and (spread := float(self.draws.std())):
            error, freedom = self._error
            return 2 * _tail(abs(float(self.draws.mean())), spread, error, freedom)
        return min(1.0, 2 * (beyond + 1) / (len(replicates) + 1))

    @property
    def _error(self) -> tuple[float, int]:
        """The standard error over seeds, and its degrees of freedom."""
        sd, k = self.seed_sd, len(self.per_seed)
        return (0.0, 0) if sd is None else (sd / np.sqrt(k), k - 1)

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


@lru_cache(maxsize=64)
def student(freedom: int, size: int = RESAMPLES) -> Floats:
    """Quantiles of Student's t, evenly spaced in probability, in a fixed shuffled order."""
    quantiles = stats.t.ppf((np.arange(size) + 0.5) / size, freedom)
    return generator("seeds", freedom, size).permutation(quantiles)


def _tail(centre: float, spread: float, error: float, freedom: int) -> float:
    """P(below 0) of a normal around ``centre`` > 0, plus ``error`` times a Student's t."""
    if not error:
        return float(stats.norm.sf(centre / spread))
    z, step = np.linspace(-10, 10, 2001, retstep=True)
    beyond = stats.t.sf((centre + spread * z) / error, freedom)
    return float(step * stats.norm.pdf(z) @ beyond)


def generator(*key: Hashable) -> np.random.Generator:
    """A random generator named by ``key``: the same name gives the same draws."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def mean(values: Floats, tasks: NDArray, weighting: Weighting = "equal") -> float:
    """Mean over documents within each sub-task, then over sub-tasks (``size``: over documents)."""
    if weighting == "size":
        return float(np.mean(values))
    return float(np.mean([np.mean(values[tasks == task]) for task in np.unique(tasks)]))


class Resampling:
    """Documents drawn with replacement within each sub-task, once, for every model alike.

    As all models answer the same documents, every replicate of one model's score belongs to the
    same draw as that of another's: differences, slopes and means of replicates are themselves
    replicates, paired by document.
    """

    def __init__(
        self, tasks: NDArray[Any], rng: np.random.Generator, resamples: int = RESAMPLES
    ) -> None:
        self.resamples = resamples
        groups = [np.flatnonzero(tasks == task) for task in np.unique(tasks)]
        self._parts = [(rows, _counts(len(rows), rng, resamples)) for rows in groups]

    def means(self, values: Floats, weighting: Weighting = "equal") -> Floats:
        """Replicates of :func:`mean`, shape (resamples,)."""
        total = np.zeros(self.resamples)
        for rows, counts in self._parts:
            share = 1 / len(self._parts) if weighting == "equal" else len(rows) / len(values)
            total += share / len(rows) * _sums(counts, values[rows])
        return total

    def ratios(self, top: Floats, bottom: Floats) -> Floats:
        """Replicates of Σ top ÷ Σ bottom, shape (resamples,)."""
        above, below = np.zeros(self.resamples), np.zeros(self.resamples)
        for rows, counts in self._parts:
            above += _sums(counts, top[rows])
            below += _sums(counts, bottom[rows])
        return above / below


def _counts(n: int, rng: np.random.Generator, resamples: int) -> NDArray[np.float32]:
    """How often each of n documents is drawn in each resample, shape (resamples, n)."""
    counts = np.empty((resamples, n), dtype=np.float32)
    chunk = max(1, 2_000_000 // n)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts[start : start + rows] = np.bincount(drawn.ravel(), minlength=rows * n).reshape(
            rows, n
        )
    return counts


def _sums(counts: NDArray[np.float32], values: Floats) -> Floats:
    # whole numbers stay exact in float32, and a matrix of it is half as much to read
    return (counts @ values.astype(np.float32)).astype(np.float64)


def unseen(scores: Floats, documents: int, rng: np.random.Generator) -> Floats:
    """Replicates of a score in per cent, allowing for answers that no document showed.

    In each resample stand, beside the documents, on average two more that are right and two that
    are wrong (Agresti & Coull's four, drawn). Without them a score of 0 or 100 % would have no
    interval at all, nor would the difference of two models that happen to agree on every document
    of a small benchmark. Each model draws its own.

    They draw a score towards 50 %, which a mean over benchmarks would keep while its interval
    narrows; so the replicates are put back around the middle they had.
    """
    right, wrong = rng.poisson(2.0, size=(2, len(scores)))
    made = (documents * scores + 100.0 * right) / (documents + right + wrong)
    return np.clip(made + scores.mean() - made.mean(), 0.0, 100.0)


def combine(terms: Sequence[tuple[float, Estimate | None]]) -> Estimate | None:
    """A weighted sum of estimates whose draws belong together; None unless all are there.

    The seeds' values are combined over the seeds that every term has.
    """
    known = [(weight, part) for weight, part in terms if part is not None]
    if not known or len(known) < len(terms):
        return None
    value = float(sum(weight * part.value for weight, part in known))
    draws = np.empty(0)
    if all(part.draws.size for _, part in known):
        draws = np.sum([weight * part.draws for weight, part in known], axis=0)
    shared = set.intersection(*(set(part.per_seed) for _, part in known))
    per_seed = {s: float(sum(w * part.per_seed[s] for w, part in known)) for s in sorted(shared)}
    return Estimate(value, draws, per_seed)


def average(parts: Iterable[Estimate | None]) -> Estimate | None:
    """Avg: the plain mean of several benchmarks' estimates; None unless all are there.

    Documents are resampled within each benchmark.
    """
    known = list(parts)
    return combine([(1 / len(known), part) for part in known])


def is_binary(scores: Floats) -> bool:
    """Whether every score (per cent) is 0 or 100."""
    return bool(np.isin(scores, (0.0, 100.0)).all())


def mcnemar(first: Floats, second: Floats) -> float:
    """McNemar's exact two-sided p of two models' binary scores on the same documents."""
    from statsmodels.stats import contingency_tables  # a second to import, which few need

    right, also = first > 0, second > 0
    table = [
        [(right & also).sum(), (right & ~also).sum()],
        [(~right & also).sum(), (~right & ~also).sum()],
    ]
    return float(contingency_tables.mcnemar(table, exact=True).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values of one table, corrected for being many (Holm); those not known stay so."""
    from statsmodels.stats.multitest import multipletests

    known = [i for i, p in enumerate(values) if p is not None]
    corrected: list[float | None] = [None] * len(values)
    if known:
        adjusted = multipletests([values[i] for i in known], method="holm")[1]
        for i, p in zip(known, adjusted, strict=True):
            corrected[i] = float(p)
    return corrected
