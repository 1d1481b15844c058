"""Scores, tokens per forward and paired differences of a study, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mars.analysis import statistics as st
from mars.analysis import tidy
from mars.analysis.documents import Answers, Documents
from mars.analysis.results import as_rows, load_evaluation
from mars.analysis.statistics import Estimate
from mars.config import Decoding, Study

SAME_SCORE = 0.05
"""Points within which records must reproduce the score of evaluation.csv to explain it."""

WEIGHTINGS: tuple[st.Weighting, ...] = ("equal", "size")


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


Side = tuple[str, Decoding | None]
"""A variant and how it is read."""

Term = tuple[float, str, Decoding | None]
"""A weight, a variant, and how it is read."""

MCNEMAR, BOOTSTRAP = "McNemar, exact", "paired bootstrap"


class Summary:
    """Estimates of one study; ask for a cell by scale, variant, benchmark and decoding.

    Args:
        evaluation: rows of ``evaluation.csv``.
        records: the frame of all records (:func:`mars.analysis.tidy.load`).
    """

    def __init__(self, study: Study, evaluation: pd.DataFrame, records: pd.DataFrame) -> None:
        self.study = study
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in as_rows(evaluation):
            self._rows.setdefault(_key(row), row)
        self._answers = Answers(records)
        self._cells: dict[tuple[Any, ...], list[Cell]] = {}
        self._known: dict[tuple[Any, ...], Estimate | None] = {}
        self._weightings: dict[str, st.Weighting] = {}

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
        """The cell of each seed of the study; none at all where a seed lacks it.

        A mean over fewer seeds is another number, and beside whole ones it would not show.
        """
        if decoding is None:
            return []
        key = (scale, variant, benchmark, decoding.id)
        if key not in self._cells:
            found = [self._cell(seed, key, decoding) for seed in self.study.seeds]
            cells = [cell for cell in found if cell is not None]
            self._cells[key] = cells if len(cells) == len(found) else []
        return self._cells[key]

    def _cell(self, seed: int, key: tuple[Any, ...], d: Decoding) -> Cell | None:
        scale, variant, benchmark, _ = key
        at = (seed, scale, variant, benchmark, d.decoder, d.block_size, float(d.tau), d.rule)
        row = self._rows.get(at)
        if row is None:
            return None
        weighting = self._weighting(benchmark)
        records = self._records(row)
        if records is not None and _gap(records, row, weighting) > SAME_SCORE:
            records = None
        return Cell(
            seed=seed,
            score=float(row["score"]),
            tokens_per_forward=float(row["tokens_per_forward"]),
            documents=int(row["documents"]),
            truncated=float(row["truncated"]),
            records=records,
            weighting=weighting,
        )

    def _records(self, row: dict[str, Any]) -> Documents | None:
        return self._answers.of(row["records"]) if isinstance(row["records"], str) else None

    def _weighting(self, benchmark: str) -> st.Weighting:
        """How a benchmark's sub-tasks are weighted: as reproduces the scores of all its rows best.

        One score alone may fit both weightings by chance, and models weighted apart could not be
        compared. Scores that neither explains count for neither.
        """
        if benchmark not in self._weightings:
            rows = [row for row in self._rows.values() if row["benchmark"] == benchmark]
            found = [(row, records) for row in rows if (records := self._records(row)) is not None]

            def gaps(weighting: st.Weighting) -> float:
                return sum(min(SAME_SCORE, _gap(made, row, weighting)) for row, made in found)

            self._weightings[benchmark] = min(WEIGHTINGS, key=gaps)
        return self._weightings[benchmark]

    def score(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        """A benchmark's score in per cent; several seeds are averaged document by document."""
        cells = self.cells(scale, variant, benchmark, decoding)
        name = (scale, variant, benchmark, decoding and decoding.id)

        def make() -> Estimate | None:
            if not cells or any(np.isnan(c.score) for c in cells):
                return None
            per_seed = {c.seed: c.score for c in cells}
            value = float(np.mean(list(per_seed.values())))
            records = _same(cells)
            if records is None:
                return Estimate(value, per_seed=per_seed)
            pooled = np.mean([r.scores for r in records], axis=0)
            draws = _resampling(benchmark, records[0]).means(pooled, cells[0].weighting)
            return Estimate(value, st.unseen(draws, len(pooled), st.generator(*name)), per_seed)

        return self._once(("score", *name), make)

    def tokens_per_forward(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> Estimate | None:
        """Σ kept tokens ÷ Σ forwards of a benchmark; several seeds are averaged."""
        key = ("forwards", scale, variant, benchmark, decoding and decoding.id)
        cells = self.cells(scale, variant, benchmark, decoding)
        return self._once(key, lambda: self._ratio(benchmark, cells))

    def _ratio(self, benchmark: str, cells: Sequence[Cell]) -> Estimate | None:
        if not cells or any(np.isnan(c.tokens_per_forward) for c in cells):
            return None
        per_seed = {c.seed: c.tokens_per_forward for c in cells}
        value = float(np.mean(list(per_seed.values())))
        records = _same(cells)
        if records is None:
            return Estimate(value, per_seed=per_seed)
        drawn = _resampling(benchmark, records[0])
        draws = [drawn.ratios(r.tokens, r.forwards) for r in records]
        return Estimate(value, np.mean(draws, axis=0), per_seed)

    def contrast(self, scale: str, benchmark: str, terms: Sequence[Term]) -> Estimate | None:
        """A weighted sum of scores of one benchmark, paired by document.

        Without an interval where documents differ, or do not explain a score.
        """
        made = st.combine([(w, self.score(scale, v, benchmark, d)) for w, v, d in terms])
        cells = [c for _, v, d in terms for c in self.cells(scale, v, benchmark, d)]
        if made is None or len({_keys(c) for c in cells}) == 1:
            return made
        return Estimate(made.value, per_seed=made.per_seed)

    def difference(self, scale: str, benchmark: str, a: Side, b: Side) -> Estimate | None:
        """Score of ``a`` minus score of ``b`` (variant, decoding), paired by document."""
        return self.contrast(scale, benchmark, [(1.0, *a), (-1.0, *b)])

    def p_value(self, scale: str, benchmark: str, a: Side, b: Side) -> tuple[float, str] | None:
        """p of two equal scores, and the test: McNemar's where scores are binary.

        McNemar's needs one answer a document, so with several seeds, as with scores between 0 and
        1, it is the paired bootstrap's. None where there is no interval either.
        """
        change = self.difference(scale, benchmark, a, b)
        if change is None or change.p is None:
            return None
        records = [
            c.records for side in (a, b) for c in self.cells(scale, side[0], benchmark, side[1])
        ]
        scores = [r.scores for r in records if r is not None]
        if len(scores) == 2 and all(map(st.is_binary, scores)):
            return st.mcnemar(*scores), MCNEMAR
        return change.p, BOOTSTRAP


@lru_cache(maxsize=2)
def _summary(study: str, folder: Path, files: tuple[Any, ...]) -> Summary:
    made = Study.model_validate_json(study)
    return Summary(made, load_evaluation(made, folder), tidy.read(made, folder))


def summarise(study: Study, results: Path) -> Summary:
    """The summary of a results folder, shared by all callers until its files change."""
    return _summary(study.model_dump_json(), results, tidy.stamp(study, results))


def _resampling(benchmark: str, records: Documents) -> st.Resampling:
    """The draws of a benchmark's documents, the same for all models that answered them."""
    return _draws(benchmark, records.tasks.astype(np.int32).tobytes())


@lru_cache(maxsize=8)
def _draws(benchmark: str, tasks: bytes) -> st.Resampling:
    return st.Resampling(np.frombuffer(tasks, np.int32), st.generator("documents", benchmark))


def _key(row: dict[Any, Any]) -> tuple[Any, ...]:
    names = ("seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule")
    return tuple(row[name] for name in names)


def _keys(cell: Cell) -> bytes | None:
    return cell.records.keys if cell.records else None


def _same(cells: Sequence[Cell]) -> list[Documents] | None:
    """The records of all cells, where they are of the same documents."""
    records = [c.records for c in cells if c.records is not None]
    if len(records) < len(cells) or len({_keys(c) for c in cells}) > 1:
        return None
    return records


def _gap(records: Documents, row: dict[str, Any], weighting: st.Weighting) -> float:
    """Points between the score of the records and that of their row in ``evaluation.csv``."""
    gap = abs(st.mean(records.scores, records.tasks, weighting) - float(row["score"]))
    return np.inf if np.isnan(gap) else gap
