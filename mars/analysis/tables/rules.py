"""The acceptance rules, scores against chance, and calibration of the confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mars.analysis import labels, tidy
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.results import CELL, as_rows, of_every_seed
from mars.analysis.statistics import Estimate
from mars.analysis.summary import summarise
from mars.analysis.tables.quality import ours, score_columns
from mars.config import Study

OPTIONS = {"MMLU-Pro": 10, "GPQA": 4}
"""Answers to choose from, where guessing has a score by construction."""


def acceptance(study: Study, results: Path) -> Table:
    """Score and tokens per forward of each acceptance rule over its thresholds."""
    summary = summarise(study, results)
    setting = study.evaluation.acceptance
    rows: list[Row] = []
    where = "This study does not compare acceptance rules."
    if setting is not None:
        name, benchmark = setting.variant, setting.benchmark
        column = study.evaluation.benchmarks[benchmark].column
        where = f"{name} on {benchmark} ({column})."
        one = (name, summary.decoding(name, benchmark))
        for scale in study.scales_of(name):
            for rule in setting.rules:
                for tau in sorted(set(setting.thresholds), reverse=True):
                    at = summary.decoding(name, benchmark, tau, rule)
                    rows.append(
                        {
                            "scale": scale,
                            "rule": rule,
                            "tau": tau,
                            "score": summary.score(scale, name, benchmark, at),
                            "change": summary.difference(scale, benchmark, (name, at), one),
                            "forwards": summary.tokens_per_forward(scale, name, benchmark, at),
                        }
                    )
    columns = [
        Column("scale", "Scale", text=True),
        Column("rule", "Rule", text=True),
        Column("tau", "Threshold", text=True),
        Column("score", "Score (%)", estimate=True, show_interval=True),
        Column("change", "Minus τ = 1 (points)", 1, True, True, signed=True),
        Column("forwards", "Tokens/forward", 2, estimate=True, show_interval=True),
    ]
    notes = [
        where,
        "The same threshold means another thing to each rule: compare scores at equal tokens per "
        f"forward. Intervals are 95 % bootstrap intervals {labels.covers(study)}.",
        "The paper compares the same three rules in its appendix; its numbers are not in this "
        "project.",
    ]
    title = "Acceptance rules"
    return Table("acceptance", title, columns, [Section(title, rows)], notes, len(study.seeds))


def chance_scores(study: Study, results: Path) -> dict[str, float]:
    """Per benchmark the score (%) of the best constant or random answer.

    From ``chance.csv`` of the results folder (columns ``benchmark``, ``score``) where it exists;
    otherwise random choice among the options of multiple-choice benchmarks.
    """
    found = {
        name: 100 / OPTIONS[b.column]
        for name, b in study.evaluation.benchmarks.items()
        if b.column in OPTIONS
    }
    path = results / "chance.csv"
    if path.exists():
        frame = pd.read_csv(path).dropna(subset=["score"])
        found |= {str(b): float(s) for b, s in zip(frame["benchmark"], frame["score"], strict=True)}
    return found


def chance(study: Study, results: Path) -> Table:
    """Base, AR SFT and MARS against the best answer that ignores the question."""
    summary = summarise(study, results)
    known = chance_scores(study, results)
    guess: dict[str, Any] = {"scale": None, "model": "Best constant or random answer"}
    cells = {b: known.get(b) for b in labels.columns(study)}
    values = [v for v in cells.values() if v is not None]
    mean = float(np.mean(values)) if len(values) == len(cells) else None
    rows: list[Row] = [{**guess, **cells, "Avg": mean}]
    margins: list[Row] = []
    for scale in study.scales:
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            size = labels.drafted(variant)
            if labels.paper_model(variant) not in ("Base (no fine-tune)", labels.AR_SFT, "MARS"):
                continue

            def score(b: str, scale: str = scale, name: str = name) -> Estimate | None:
                return summary.score(scale, name, b, summary.decoding(name, b))

            text = labels.label(name, variant) + (f", B = {size}" if size else "")
            row = ours(study, score, {"scale": scale, "model": text})
            rows.append(row)
            above = {b: _above(row[b], known.get(b)) for b in cells}
            total = _above(row["Avg"], mean)
            margins.append({"scale": scale, "model": text, **above, "Avg": total})
    columns = [
        Column("scale", "Scale", text=True),
        Column("model", "Model", text=True),
        *score_columns(study),
    ]
    notes = [
        "The best constant or random answer comes from the benchmark's own grader where the study "
        "recorded it (chance.csv), else from the number of options.",
        "Scores at one token per forward; Avg with a 95 % bootstrap interval "
        f"{labels.covers(study)}.",
    ]
    sections = [
        Section("Scores (%)", rows),
        Section("Above the best constant or random answer (points)", margins, signed=True),
    ]
    return Table("chance", "Scores against chance", columns, sections, notes, len(study.seeds))


def _above(score: Estimate | None, base: float | None) -> Estimate | None:
    if score is None or base is None:
        return None
    return Estimate(
        score.value - base, score.draws - base, {s: v - base for s, v in score.per_seed.items()}
    )


EDGES = np.array([0.0, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999, 1.0])


def calibration_bins(study: Study, results: Path) -> pd.DataFrame:
    """Answers of AR SFT at τ = 1, binned by the confidence in their least certain token.

    Columns: scale, low, high (bin edges), documents, confidence (mean), right (share, per cent).
    Only scored records with confidences count; one row per bin that has documents.
    """
    records = of_every_seed(study, tidy.read(study, results), CELL)
    records = records.dropna(subset=["least_confidence", "score"])
    records = records[(records["decoder"] == "ar") & (records["tau"] == 1.0)]
    found = []
    for scale in study.scales:
        mine = records["variant"] == labels.reference(study, scale)
        here = records[mine & (records["scale"] == scale)]
        least, right = here["least_confidence"].to_numpy(), here["score"].to_numpy()
        where = np.clip(np.searchsorted(EDGES, least, side="right") - 1, 0, len(EDGES) - 2)
        for i in np.unique(where):
            mine = where == i
            found.append(
                {
                    "scale": scale,
                    "low": EDGES[i],
                    "high": EDGES[i + 1],
                    "documents": int(mine.sum()),
                    "confidence": float(least[mine].mean()),
                    "right": 100 * float(right[mine].mean()),
                }
            )
    names = ["scale", "low", "high", "documents", "confidence", "right"]
    return pd.DataFrame(found, columns=names)


def calibration(study: Study, results: Path) -> Table:
    """Whether confidence on held-out items means anything: certain answers must be right more."""
    bins = calibration_bins(study, results)
    rows: list[Row] = [{**r, "bin": f"{r['low']:g} – {r['high']:g}"} for r in as_rows(bins)]
    columns = [
        Column("scale", "Scale", text=True),
        Column("bin", "Least confidence in the answer", text=True),
        Column("documents", "Documents", text=True),
        Column("confidence", "Mean of it", decimals=3),
        Column("right", "Right answers (%)"),
    ]
    notes = [
        "AR SFT at one token per forward, all benchmarks and seeds together. An answer is as "
        "certain as its least certain token; several wordings may be right, so an answer may be "
        "right more often than its confidence says.",
    ]
    title = "Calibration on held-out items"
    return Table("calibration", title, columns, [Section(title, rows)], notes)
