"""A study's results as evidence: every number with the uncertainty of its measurement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mars.analysis import labels
from mars.analysis import statistics as st
from mars.analysis.claims.evidence import Model, Source, Term
from mars.analysis.claims.verdict import repeated_ratio
from mars.analysis.speed import BLOCK, NONE, Grid, Setting
from mars.analysis.statistics import Estimate
from mars.analysis.summary import Summary
from mars.config import Decoding

TAU = 0.95
"""The threshold of the paper's wall-clock table."""

METHODS = {"none": NONE, "block": BLOCK}
AR, AR_PADDED, OURS, RELEASED = "ar_sft", "ar_released", "mars", "released"
"""Methods of ``training_cost.csv``; AR SFT as released is padded, a conversation a row."""


class Measured:
    """Evidence from what a study measured.

    Args:
        summary: its scores.
        grid: its wall-clock runs at ``TAU``.
        costs: its ``training_cost.csv``.
    """

    def __init__(self, summary: Summary, grid: Grid, costs: pd.DataFrame) -> None:
        self.study = summary.study
        self._summary, self._grid, self._costs = summary, grid, costs
        self._benchmarks = {title: name for name, title in labels.columns(self.study).items()}
        self.columns = list(self._benchmarks)
        titles = labels.columns(self.study)
        self.panels = [titles[name] for name in self.study.evaluation.panels]
        self.scales = list(self.study.scales)

    def paper_scale(self, scale: str) -> str | None:
        return self.study.scales[scale].paper

    # ------------------------------------------------------------------------------- models

    def _variant(self, scale: str, name: str, block_size: int | None) -> str | None:
        """The variant that stands for a model: the first in the order of tables."""
        for variant in labels.ordered(self.study, scale):
            made = self.study.variants[variant]
            if (labels.paper_model(made), labels.drafted(made)) == (name, block_size):
                return variant
        return None

    def _read(self, scale: str, model: Model, column: str) -> tuple[str, Decoding] | None:
        variant = self._variant(scale, model.name, model.block_size)
        if variant is None or column not in self._benchmarks:
            return None
        how = self._summary.decoding(variant, self._benchmarks[column], model.tau)
        return (variant, how) if how else None

    def has(self, scale: str, model: Model, columns: Sequence[str] | None = None) -> bool:
        wanted = self.columns if columns is None else columns
        return all(self._read(scale, model, column) for column in wanted)

    def block_sizes(self, scale: str, name: str) -> list[int]:
        made = (self.study.variants[v] for v in labels.ordered(self.study, scale))
        sizes = {labels.drafted(v) for v in made if labels.paper_model(v) == name}
        return sorted(size for size in sizes if size)

    def thresholds(self, scale: str, model: Model, column: str) -> list[float]:
        variant = self._variant(scale, model.name, model.block_size)
        if variant is None or column not in self._benchmarks:
            return []
        return self._summary.thresholds(variant, self._benchmarks[column])

    def sources(self, scale: str, models: Sequence[Model]) -> tuple[Source, ...]:
        variants = (self._variant(scale, m.name, m.block_size) for m in models)
        return tuple(("evaluation", scale, v) for v in dict.fromkeys(variants) if v)

    # ------------------------------------------------------------------------------- scores

    def score(self, scale: str, terms: Sequence[Term]) -> Estimate | None:
        mean = 1 / len(self.columns)
        parts = [
            (weight * share, model, column)
            for weight, model, on in terms
            for column, share in ([(on, 1.0)] if on else [(c, mean) for c in self.columns])
        ]
        sums = []
        for column in dict.fromkeys(column for *_, column in parts):
            read = [(w, self._read(scale, model, column)) for w, model, c in parts if c == column]
            known = [(w, *found) for w, found in read if found]
            if len(known) < len(read):
                return None
            sums.append((1.0, self._summary.contrast(scale, self._benchmarks[column], known)))
        return st.combine(sums)

    def pace(self, scale: str, model: Model) -> Estimate | None:
        found = []
        for column, benchmark in self._benchmarks.items():
            read = self._read(scale, model, column)
            made = read and self._summary.tokens_per_forward(scale, read[0], benchmark, read[1])
            found.append(made)
        return st.average(found)

    @property
    def jacobi_scales(self) -> Sequence[str]:
        made = self.study.evaluation.jacobi
        return self.study.scales_of(made.variant) if made else []

    def jacobi(self, scale: str) -> Estimate | None:
        made = self.study.evaluation.jacobi
        if made is None:
            return None
        found = []
        for benchmark in self._benchmarks.values():
            settings = self.study.decodings(made.variant, benchmark)
            how = next(d for d in settings if d.decoder == "jacobi")
            found.append(self._summary.tokens_per_forward(scale, made.variant, benchmark, how))
        return st.average(found)

    # --------------------------------------------------------------------------- wall-clock

    @property
    def timed(self) -> str | None:
        made = self.study.throughput
        return made.scale if made else None

    def batch_sizes(self, cache: str, cache_block: int | None) -> Sequence[int]:
        made = self.study.throughput
        if made is None or TAU not in made.thresholds:
            return []
        if cache == "block" and cache_block not in made.cache_blocks:
            return []
        return made.batch_sizes

    def _speedups(self, cache: str, cache_block: int | None, batch_size: int) -> pd.Series | None:
        """Logarithms of the speedup over the fastest cached AR, by (seed, repeat)."""
        mine = Setting(METHODS[cache], cache_block, batch_size)
        other = self._grid.opponent(batch_size)
        if mine not in self._grid.settings or other is None:
            return None
        return np.log(self._grid.ratios("seconds", other, mine))

    def speedup(self, cache: str, cache_block: int | None, batch_size: int) -> Estimate | None:
        found = self._speedups(cache, cache_block, batch_size)
        return None if found is None else repeated_ratio(independent(found))

    def trend(
        self, cache: str, cache_block: int | None, batch_sizes: Sequence[int]
    ) -> Estimate | None:
        found = {b: self._speedups(cache, cache_block, b) for b in batch_sizes}
        known = {b: speeds for b, speeds in found.items() if speeds is not None}
        if len(known) < len(found):
            return None
        runs = pd.DataFrame(known).dropna()  # repeats that every batch size has
        if runs.empty:
            return None
        slopes = np.polyfit(np.log2(runs.columns), runs.to_numpy().T, 1)[0]
        return repeated_ratio(independent(pd.Series(slopes, runs.index)))

    # ----------------------------------------------------------------------------- training

    def training_time(self, layout: str) -> tuple[str, Estimate | None] | None:
        cost = self.study.training_cost
        if cost is None or cost.released is None:
            return None
        padded = layout == "released" and (self._costs["method"] == AR_PADDED).any()
        if layout == "released":
            beside = "laid out alike" if padded else "whose rows are packed, not padded"
            what = f"{cost.scale}: step as released (2L) ÷ AR SFT, {beside}"
        else:
            what = f"{cost.scale}: our step ÷ AR SFT, both packed"
        above = self._step(RELEASED if layout == "released" else OURS, cost.released)
        below = self._step(AR_PADDED if padded else AR, None)
        return what, repeated_ratio(independent((above / below).map(np.log)))

    def _step(self, method: str, variant: str | None) -> pd.Series:
        """Seconds of a step, by (seed, repeat)."""
        runs = self._costs[self._costs["method"] == method]
        if variant is not None:
            runs = runs[runs["variant"] == variant]
        runs = runs.set_index(["seed", "repeat"])
        return runs["seconds"].astype(float) / runs["steps"].astype(float)


def independent(runs: pd.Series) -> list[float]:
    """What an interval may take as independent: seeds' means, or of one seed its repeats.

    Repeats of a seed share its models and its draws: counted one by one, they would make several
    seeds look like many more.

    Args:
        runs: by (seed, repeat); what is missing in a repeat is left out.
    """
    known = runs.dropna()
    seeds = known.groupby("seed").mean()
    return list(seeds if len(seeds) > 1 else known)
