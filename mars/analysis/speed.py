"""Runs of the wall-clock grid, compared: ratios within a repeat, their median and their spread.

The runs of a repeat follow each other on one machine, so a ratio is taken within each repeat (and
seed), and its median over repeats is what is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mars.analysis.results import load_throughput, of_every_seed
from mars.analysis.statistics import Repeated
from mars.config import Study
from mars.config.speed import Throughput

GENERATE, STATIC, AR = "generate", "generate_static", "ar"
RELEASED, NONE, BLOCK, CURSOR, AUTO = "released", "none", "block", "cursor", "auto"
OPPONENTS = (GENERATE, STATIC, AR)
"""The autoregressive methods: every speedup is over the fastest of them at its batch size."""

LABELS = {
    GENERATE: "AR, transformers generate",
    STATIC: "AR, generate with static cache",
    AR: "AR, this suite's loop",
    RELEASED: "MARS, algorithm as released",
    NONE: "MARS (no cache)",
    BLOCK: "MARS + block cache",
    CURSOR: "MARS + cursor cache",
    AUTO: "MARS + cursor cache, draft auto",
}
"""Methods in the order of Table 5; the cursor cache is what the paper leaves as future work."""

SHORT = {GENERATE: "generate", STATIC: "generate (static)", AR: "our AR"}

PAPER_METHODS = {
    GENERATE: "AR (KV cache)",
    RELEASED: "MARS + block cache",
    NONE: "MARS (no cache)",
    BLOCK: "MARS + block cache",
}
"""The paper's names. Its block cache is timed here twice: as released, and as this suite has it."""

REPLAYED = "replayed acceptance"


class Setting(NamedTuple):
    """What was timed, but for the repeat."""

    method: str
    cache_block: int | None
    batch_size: int
    scheduling: str = "static"


def _roofline(runs: pd.DataFrame) -> pd.Series:
    """Seconds that each run's work takes at the machine's ceilings: of its FLOP or its bytes."""
    shares = [runs[f"{of}_per_s"] / runs[f"peak_{of}_per_s"] for of in ("gflops", "gbytes")]
    return runs["seconds"] * pd.concat(shares, axis=1).max(axis=1, skipna=False)


class Grid:
    """The runs of one part of ``throughput.csv`` at one acceptance and one τ.

    Beside the file's columns they have ``roofline_seconds``, what the machine's ceilings allow,
    and ``of_roofline``, that over the measured seconds.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        self._runs: dict[Setting, pd.DataFrame] = {}
        kinds = zip(runs["method"], runs["cache"], runs["draft"], strict=True)
        runs = runs.assign(
            kind=[kind_of(*kind) for kind in kinds],
            cache_block=runs["cache_block"].fillna(0).astype(int),
            scheduling=runs["scheduling"].fillna("static"),
            roofline_seconds=_roofline(runs),
        )
        runs["of_roofline"] = runs["roofline_seconds"] / runs["seconds"]
        keys = ["kind", "cache_block", "batch_size", "scheduling"]
        groups: Iterable[tuple[Any, pd.DataFrame]] = runs.groupby(keys)
        for (kind, block, batch, scheduling), mine in groups:
            if kind in LABELS:
                key = Setting(kind, int(block) or None, int(batch), scheduling)
                # an opponent that was timed again beside each τ counts once a repeat
                self._runs[key] = mine.groupby(["seed", "repeat"]).mean(numeric_only=True)
        place = list(LABELS)
        self.settings = sorted(
            self._runs, key=lambda s: (place.index(s.method), s.cache_block or 0, *s[2:])
        )
        self._opponents = {
            batch: self.fastest([s for s in self.at(batch) if s.method in OPPONENTS])
            for batch in {s.batch_size for s in self.settings}
        }

    def at(self, batch_size: int) -> list[Setting]:
        """The settings of a batch size."""
        return [s for s in self.settings if s.batch_size == batch_size]

    def find(self, method: str, batch_size: int) -> Setting | None:
        """The setting of a method at a batch size, of several blocks the first."""
        return next((s for s in self.at(batch_size) if s.method == method), None)

    def of(self, column: str, setting: Setting) -> Repeated | None:
        """A column of ``throughput.csv``: its median over repeats and seeds."""
        return Repeated.of(list(self._runs[setting][column]))

    def prompts(self, setting: Setting) -> int:
        """How many were decoded in a run."""
        return int(self._runs[setting]["prompts"].iloc[0])

    def ratio(self, column: str, above: Setting | None, below: Setting | None) -> Repeated | None:
        """``column`` of one setting over that of another, over the repeats that both have."""
        if above is None or below is None:
            return None
        return Repeated.of(list(self.ratios(column, above, below)))

    def ratios(self, column: str, above: Setting, below: Setting) -> pd.Series:
        """``column`` of one setting over that of another, by (seed, repeat)."""
        return self._runs[above][column] / self._runs[below][column]

    def speedup(self, setting: Setting, base: Setting | None) -> Repeated | None:
        """``base``'s seconds over a setting's, over the same prompts."""
        return self.ratio("seconds", base, setting)

    def efficiency(self, setting: Setting, base: Setting | None = None) -> Repeated | None:
        """Speedup in tokens/s over ``base``, None: our AR loop, ÷ tokens per forward."""
        base = base or self.find(AR, setting.batch_size)
        if base is None:
            return None
        gains = self.ratios("tokens_per_s", setting, base)
        return Repeated.of(list(gains / self._runs[setting]["tokens_per_forward"]))

    def per(self, column: str, each: str, setting: Setting) -> Repeated | None:
        """One column of a setting over another of it."""
        return Repeated.of(list(self._runs[setting][column] / self._runs[setting][each]))

    def share(self, column: str, setting: Setting) -> Repeated | None:
        """Per cent of the machine's ceiling that an achieved rate is."""
        found = self.per(column, f"peak_{column}", setting)
        return found and Repeated(100 * found.value, found.sd and 100 * found.sd)

    def fastest(self, settings: Sequence[Setting | None]) -> Setting | None:
        """The one that no other is faster than, by medians of the same ratios as are reported.

        Where they go round in a circle: the one that another is least faster than.
        """
        timed = [s for s in settings if s and self.of("seconds", s)]

        def behind(mine: Setting) -> float:
            found = (self.ratio("seconds", mine, other) for other in timed)
            return max((ratio.value for ratio in found if ratio), default=1.0)

        return min(timed, key=behind, default=None)

    def opponent(self, batch_size: int) -> Setting | None:
        """The fastest autoregressive method at a batch size."""
        return self._opponents.get(batch_size)


def load_grid(study: Study, results: Path, tau: float | None) -> Grid:
    """The grid of batch sizes and caches at a threshold; None: at replayed acceptance."""
    runs = _runs(study, results, "grid")
    if tau is None:
        return Grid(runs[runs["acceptance"] == "replayed"])
    # what drafts nothing has no threshold, and stands beside every one
    mine = runs["method"].isin(OPPONENTS) | (runs["tau"] == tau)
    return Grid(runs[(runs["acceptance"] == "model") & mine])


def load_grids(study: Study, results: Path) -> dict[float | None, Grid]:
    """The grid at each threshold of a study, and under None at replayed acceptance."""
    made = study.throughput
    taus: list[float | None] = [*made.thresholds, *([None] if made.replay else [])] if made else []
    return {tau: load_grid(study, results, tau) for tau in taus}


def acceptance_label(tau: float | None) -> str:
    """What decides how many tokens are accepted, as a title: a threshold, or (None) the replay."""
    return REPLAYED.capitalize() if tau is None else f"τ = {tau:g}"


def load_batching(study: Study, results: Path) -> Grid:
    """Static and continuous batching of the same requests, at replayed acceptance."""
    return Grid(_runs(study, results, "batching"))


def _runs(study: Study, results: Path, part: str) -> pd.DataFrame:
    runs = load_throughput(study, results)
    return of_every_seed(study, runs[runs["part"] == part], ["acceptance", "method"])


def prompts_decoded(grid: Throughput) -> str:
    """How many prompts the runs of a grid decode, in words."""
    counts = [grid.prompts_at(size) for size in grid.batch_sizes]
    low, high = min(counts), max(counts)
    if low == high:
        return f"{high} prompts of {grid.benchmark}"
    return (
        f"the first {low} to {high} prompts of {grid.benchmark} ({grid.batches} batches at most "
        "of each size)"
    )


def threshold(grid: Throughput) -> float | None:
    """The threshold that is drawn where there is room for one: the highest below 1."""
    below = [tau for tau in grid.thresholds if tau < 1]
    return max(below or grid.thresholds, default=None)


def kind_of(method: str, cache: str, draft: str) -> str:
    if method != "mars":
        return method
    return cache if draft != "auto" else AUTO if cache == CURSOR else f"{cache}, auto"
