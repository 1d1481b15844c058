"""One model against another on the same documents: differences, intervals, corrected p-values."""

from __future__ import annotations

import pandas as pd

from mars.analysis import labels, tidy
from mars.analysis.statistics import Estimate, average, holm
from mars.analysis.summary import BOOTSTRAP, Side, Summary, summarise
from mars.config.study import known

COLUMNS = ("benchmark", "difference", "low", "high", "p", "p_holm", "n", "test")
AVERAGE = "Avg"


def compare(
    study: tidy.Source, scale: str, a: str | tuple[str, float], b: str | tuple[str, float]
) -> pd.DataFrame:
    """``a`` minus ``b`` in points, by benchmark and on average (columns: ``COLUMNS``).

    >>> compare("embedded", "toy-m", ("mars_b4", 0.95), "ar_sft")

    Args:
        a, b: a variant, read at τ = 1, or a variant and its τ.

    ``p`` is McNemar's exact one where scores are binary, else the paired bootstrap's; ``p_holm``
    is corrected for the rows of this table. What was not measured is missing, Avg included where
    a benchmark is.

    Raises:
        ValueError: the study has no such scale or variant, or does not read it at that τ.
    """
    made, results = tidy.locate(study)
    known(scale, made.scales, "scale")
    summary = summarise(made, results)
    for which in (a, b):
        _asked(summary, scale, *_pair(which))
    rows = [_row(summary, scale, name, a, b) for name in labels.columns(made)]
    mean = average(row.pop("estimate") for row in rows)
    n = sum(row["n"] for row in rows) if all(row["n"] for row in rows) else None
    rows.append({"benchmark": AVERAGE, **_numbers(mean), "n": n})
    if mean is not None and mean.p is not None:
        rows[-1] |= {"p": mean.p, "test": BOOTSTRAP}
    for row, corrected in zip(rows, holm([row.get("p") for row in rows]), strict=True):
        row["p_holm"] = corrected
    kinds = dict.fromkeys(COLUMNS[1:6], "float64") | {"n": "Int64"}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(kinds)


def _row(
    summary: Summary, scale: str, benchmark: str, a: str | tuple[str, float], b: str | tuple
) -> dict:
    sides = [_side(summary, benchmark, which) for which in (a, b)]
    change = summary.difference(scale, benchmark, *sides)
    tested = summary.p_value(scale, benchmark, *sides)
    cells = summary.cells(scale, sides[0][0], benchmark, sides[0][1])
    return {
        "benchmark": benchmark,
        **_numbers(change),
        "p": tested and tested[0],
        "test": tested and tested[1],
        "n": cells[0].documents if change is not None else None,
        "estimate": change,
    }


def _side(summary: Summary, benchmark: str, which: str | tuple[str, float]) -> Side:
    name, tau = _pair(which)
    return name, summary.decoding(name, benchmark, tau)


def _pair(which: str | tuple[str, float]) -> tuple[str, float]:
    return (which, 1.0) if isinstance(which, str) else which


def _asked(summary: Summary, scale: str, name: str, tau: float) -> None:
    """Raise ValueError for what the study would never measure: it is no missing result."""
    study = summary.study
    if name not in study.variants:
        raise ValueError(f"unknown variant {name!r}; choose from {', '.join(study.variants)}")
    if scale not in (made := study.scales_of(name)):
        raise ValueError(f"{name} is not made at {scale}; choose from {', '.join(made)}")
    taus = {t for b in labels.columns(study) for t in summary.thresholds(name, b)}
    if tau not in taus:
        there = ", ".join(f"{t:g}" for t in sorted(taus, reverse=True))
        raise ValueError(f"{name} is not read at τ = {tau:g}; choose from {there}")


def _numbers(change: Estimate | None) -> dict[str, float | None]:
    low, high = (change.interval if change else None) or (None, None)
    return {"difference": change.value if change else None, "low": low, "high": high}
