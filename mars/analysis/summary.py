"""Scores, tokens per forward and paired differences of a study, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mars.analysis import statistics as st
from mars.analysis.results import (
    Documents,
    as_rows,
    files_of_runs,
    load_documents,
    load_evaluation,
)
from mars.analysis.statistics import Estimate
from mars.config import Decoding, Study

SAME_SCORE = 0.05
"""Points within which records must reproduce the score of evaluation.csv to explain it."""


@dataclass(frozen=True)
class Cell:
    """One (scale, variant, benchmark, decoding) of one seed: its row and its documents."""

    seed: int
    score: float
    tokens_per_forward: float
    documents: int
    truncated: float
    records: Documents | None
    weighting: st.Weighting


class Summary:
    """Estimates of one study; ask for a cell by scale, variant, benchmark and decoding."""

    def __init__(self, study: Study, results: Path) -> None:
        self.study = study
        self.results = results
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in as_rows(load_evaluation(study, results)):
            self._rows.setdefault(_key(row), row)
        self._cells: dict[tuple[Any, ...], list[Cell]] = {}
        self._known: dict[tuple[Any, ...], Estimate | None] = {}

    def _once(self, key: tuple[Any, ...], make: Callable[[], Estimate | None]) -> Estimate | None:
        """An estimate is made once; the tables and figures of a report share it."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    # ------------------------------------------------------------------ settings of a variant

    def decoding(
        self, variant: str, benchmark: str, tau: float = 1.0, rule: str = "probability"
    ) -> Decoding | None:
        """The setting of the study's own method for a variant at a threshold."""
        made = self.study.variants[variant].decoder
        for d in self.study.decodings(variant, benchmark):
            if (d.decoder, d.tau, d.rule) == (made, tau, rule):
                return d
        return None

    def thresholds(self, variant: str, benchmark: str) -> list[float]:
        """Thresholds a variant is read at on a benchmark (probability rule), from 1 down."""
        made = self.study.variants[variant].decoder
        found = {
            d.tau
            for d in self.study.decodings(variant, benchmark)
            if d.decoder == made and d.rule == "probability"
        }
        return sorted(found, reverse=True)

    # ------------------------------------------------------------------------------ estimates

    def cells(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> list[Cell]:
        """The cell of every seed that has it."""
        if decoding is None:
            return []
        key = (scale, variant, benchmark, decoding.id)
        if key not in self._cells:
            found = (self._cell(seed, key, decoding) for seed in self.study.seeds)
            self._cells[key] = [cell for cell in found if cell is not None]
        return self._cells[key]

    def _cell(self, seed: int, key: tuple[Any, ...], d: Decoding) -> Cell | None:
        scale, variant, benchmark, _ = key
        at = (seed, scale, variant, benchmark, d.decoder, d.block_size, float(d.tau), d.rule)
        row = self._rows.get(at)
        if row is None:
            return None
        score = float(row["score"])
        records, weighting = None, "equal"
        if isinstance(row["records"], str):
            records = load_documents(self.results, row["records"])
        if records is not None:
            explained = _weighting(records, score)
            records, weighting = (records, explained) if explained else (None, "equal")
        return Cell(
            seed=seed,
            score=score,
            tokens_per_forward=float(row["tokens_per_forward"]),
            documents=int(row["documents"]),
            truncated=float(row["truncated"]),
            records=records,
            weighting="size" if weighting == "size" else "equal",
        )

    def score(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        """A benchmark's score in per cent; several seeds are averaged document by document."""
        key = ("score", scale, variant, benchmark, decoding)
        return self._once(key, lambda: self._score(scale, variant, benchmark, decoding))

    def _score(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        cells = self.cells(scale, variant, benchmark, decoding)
        if not cells or any(np.isnan(c.score) for c in cells):
            return None
        per_seed = {c.seed: c.score for c in cells}
        value = float(np.mean(list(per_seed.values())))
        pooled = _pool(cells)
        if pooled is None:
            return Estimate(value, per_seed=per_seed)
        values, tasks = pooled
        rng = st.generator("score", scale, variant, benchmark, decoding and decoding.id)
        draws = st.resample_tasks(values, tasks, rng, cells[0].weighting)
        return Estimate(value, draws, per_seed)

    def tokens_per_forward(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        """Σ kept tokens ÷ Σ forwards of a benchmark; several seeds are averaged."""
        key = ("forwards", scale, variant, benchmark, decoding)
        return self._once(key, lambda: self._ratio(scale, variant, benchmark, decoding))

    def _ratio(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        cells = self.cells(scale, variant, benchmark, decoding)
        if not cells or any(np.isnan(c.tokens_per_forward) for c in cells):
            return None
        per_seed = {c.seed: c.tokens_per_forward for c in cells}
        value = float(np.mean(list(per_seed.values())))
        if any(c.records is None for c in cells):
            return Estimate(value, per_seed=per_seed)
        draws = np.zeros(st.RESAMPLES)
        for c in cells:
            assert c.records is not None
            key = ("forwards", c.seed, scale, variant, benchmark, decoding and decoding.id)
            draws += st.resample_ratio(c.records.tokens, c.records.forwards, st.generator(*key))
        return Estimate(value, draws / len(cells), per_seed)

    def difference(
        self,
        scale: str,
        benchmark: str,
        a: tuple[str, Decoding | None],
        b: tuple[str, Decoding | None],
    ) -> Estimate | None:
        """Score of ``a`` minus score of ``b`` (variant, decoding), paired by document.

        With several seeds, over the seeds that both have.
        """
        key = ("difference", scale, benchmark, a, b)
        return self._once(key, lambda: self._difference(scale, benchmark, a, b))

    def _difference(
        self,
        scale: str,
        benchmark: str,
        a: tuple[str, Decoding | None],
        b: tuple[str, Decoding | None],
    ) -> Estimate | None:
        left = {c.seed: c for c in self.cells(scale, a[0], benchmark, a[1])}
        right = {c.seed: c for c in self.cells(scale, b[0], benchmark, b[1])}
        seeds = sorted(left.keys() & right.keys())
        per_seed = {s: left[s].score - right[s].score for s in seeds}
        if not seeds or any(np.isnan(v) for v in per_seed.values()):
            return None
        value = float(np.mean(list(per_seed.values())))
        first, second = _pool([left[s] for s in seeds]), _pool([right[s] for s in seeds])
        weighting = left[seeds[0]].weighting
        if (
            first is None
            or second is None
            or _keys(left[seeds[0]]) != _keys(right[seeds[0]])
            or weighting != right[seeds[0]].weighting
        ):
            return Estimate(value, per_seed=per_seed)
        name = [(v, d and d.id) for v, d in (a, b)]
        rng = st.generator("difference", scale, benchmark, *name)
        draws = st.resample_tasks(first[0] - second[0], first[1], rng, weighting)
        return Estimate(value, draws, per_seed)


@lru_cache(maxsize=8)
def _summary(study: str, folder: Path, stamp: tuple[Any, ...]) -> Summary:
    return Summary(Study.model_validate_json(study), folder)


def summarise(study: Study, results: Path) -> Summary:
    """The summary of a results folder, shared by all callers until its files change."""
    paths = [path for *_, path in files_of_runs(study, results, "evaluation.csv")]
    stamp = tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in paths)
    return _summary(study.model_dump_json(), results, stamp)


def mean_over(parts: Iterable[Estimate | None]) -> Estimate | None:
    """Avg: the plain mean over benchmarks; None where one is missing."""
    return st.average(list(parts))


def _key(row: dict[Any, Any]) -> tuple[Any, ...]:
    names = ("seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule")
    return tuple(row[name] for name in names)


def _keys(cell: Cell) -> tuple[tuple[str, str], ...] | None:
    return cell.records.keys if cell.records else None


def _pool(cells: Sequence[Cell]) -> tuple[st.Floats, np.ndarray] | None:
    """Per document the mean score over seeds, and its sub-task; None if documents differ."""
    records = [c.records for c in cells]
    first = records[0]
    if first is None or any(r is None or r.keys != first.keys for r in records):
        return None
    return np.mean([r.scores for r in records if r is not None], axis=0), first.tasks


def _weighting(records: Documents, score: float) -> st.Weighting | None:
    """How sub-tasks are weighted in the reported score: whichever reproduces it, or neither."""
    weightings: tuple[st.Weighting, ...] = ("equal", "size")
    for weighting in weightings:
        if abs(st.mean(records.scores, records.tasks, weighting) - score) <= SAME_SCORE:
            return weighting
    return None
