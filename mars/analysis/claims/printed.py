"""The paper's own numbers as evidence: as exact as they are printed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mars.analysis import paper
from mars.analysis.claims.evidence import Model, Source, Term
from mars.analysis.claims.verdict import between, exact
from mars.analysis.statistics import Estimate

METHODS = {"none": "MARS (no cache)", "block": "MARS + block cache"}


class Printed:
    """Evidence from the paper's tables and text, on all or some of its columns."""

    def __init__(self, columns: Sequence[str] = paper.COLUMNS) -> None:
        self.columns = columns
        panels = paper.facts()["frontier_panels"]
        self.panels = list(dict.fromkeys(column for _, column in panels if column in columns))
        self.scales = list(dict.fromkeys(paper.table("table2")["scale"]))
        self._speeds = paper.table("table5")

    def paper_scale(self, scale: str) -> str | None:
        return scale

    def has(self, scale: str, model: Model, columns: Sequence[str] | None = None) -> bool:
        return _scores(scale, model) is not None

    def block_sizes(self, scale: str, name: str) -> list[int]:
        rows = pd.concat([paper.table("table2"), paper.table("table3")])
        found = rows[(rows["scale"] == scale) & (rows["model"] == name)]["block_size"].dropna()
        return sorted({int(size) for size in found})

    def thresholds(self, scale: str, model: Model, column: str) -> list[float]:
        swept = paper.facts()["thresholds_swept"]
        return [tau for tau in swept if self.has(scale, model._replace(tau=tau))]

    def score(self, scale: str, terms: Sequence[Term]) -> Estimate | None:
        total = 0.0
        for weight, model, column in terms:
            value = self._of(_scores(scale, model), column)
            if value is None:
                return None
            total += weight * value
        return exact(round(total, 9))  # 30.4 − 28.7 is 1.7

    def _of(self, row: dict[str, float] | None, column: str | None) -> float | None:
        """A cell, or the mean: the paper's own where all of its columns are asked for."""
        if row is None or not {column} <= {None, *row}:
            return None
        if column is not None:
            return row[column]
        if set(self.columns) == set(paper.COLUMNS):
            return row["Avg"]
        known = [row[c] for c in self.columns if c in row]
        return float(np.mean(known)) if len(known) == len(self.columns) else None

    def pace(self, scale: str, model: Model) -> Estimate | None:
        row = paper.multi_token(scale, model.block_size or 1, model.tau, "tokens_per_forward")
        value = self._of(row, None)
        return None if value is None else exact(value)

    @property
    def jacobi_scales(self) -> Sequence[str]:
        return [paper.facts()["jacobi_tokens_per_forward"]["scale"]]

    def jacobi(self, scale: str) -> Estimate | None:
        return exact(paper.facts()["jacobi_tokens_per_forward"]["baseline"])

    @property
    def timed(self) -> str | None:
        return "7B"

    def batch_sizes(self, cache: str, cache_block: int | None) -> Sequence[int]:
        return [int(batch) for batch in self._rows(cache, cache_block).index]

    def _rows(self, cache: str, cache_block: int | None) -> pd.Series:
        rows = self._speeds
        same = rows["method"] == METHODS[cache]
        same &= rows["cache_block"].fillna(0) == (cache_block or 0)
        return rows[same].set_index("batch_size")["speedup"]

    def speedup(self, cache: str, cache_block: int | None, batch_size: int) -> Estimate | None:
        found = self._rows(cache, cache_block).get(batch_size)
        return None if found is None else exact(float(found))

    def trend(
        self, cache: str, cache_block: int | None, batch_sizes: Sequence[int]
    ) -> Estimate | None:
        speeds = np.log(self._rows(cache, cache_block).loc[list(batch_sizes)].to_numpy())
        return exact(float(np.exp(np.polyfit(np.log2(batch_sizes), speeds, 1)[0])))

    def training_time(self, layout: str) -> tuple[str, Estimate | None] | None:
        if layout != "released":
            return None
        return "step time ÷ AR SFT", between(
            *paper.facts()["training_overhead"]["step_time_vs_sft"]
        )

    def sources(self, scale: str, models: Sequence[Model]) -> tuple[Source, ...]:
        return ()


def _scores(scale: str, model: Model) -> dict[str, float] | None:
    name, size, tau = model
    if tau < 1:
        return paper.multi_token(scale, size or 1, tau, "accuracy") if name == "MARS" else None
    found = paper.scores("table2", scale, name, size)
    return found or paper.scores("table3", scale, name, size)
