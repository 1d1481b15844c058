"""The variant's speed–quality frontier over those of its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from mars.analysis import labels
from mars.analysis.compare.numbers import common_thresholds
from mars.analysis.figures import style
from mars.analysis.results import as_rows
from mars.analysis.summary import Summary, mean_over, summarise
from mars.config import Study

MEAN = "mean"
"""The panel of the mean over all benchmarks."""

COLUMNS = ("scale", "panel", "variant", "tau", "score", "low", "high", "forwards")


def data(study: Study, results: Path, variant: str, baselines: Sequence[str]) -> pd.DataFrame:
    """Points of every curve.

    Columns: scale, panel (``mean``, or a benchmark of the study's panels), variant, tau, score
    (%), low, high (95 %, documents; NaN where unknown), forwards (tokens per forward).
    """
    summary = summarise(study, results)
    names = [variant, *baselines]
    rows: list[dict[str, Any]] = []
    for scale in study.scales_of(variant):
        for panel in [MEAN, *study.evaluation.panels]:
            for name in names:
                if scale in study.scales_of(name):
                    rows += _curve(summary, scale, panel, name)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _curve(summary: Summary, scale: str, panel: str, name: str) -> list[dict[str, Any]]:
    benchmarks = list(labels.columns(summary.study)) if panel == MEAN else [panel]
    taus = common_thresholds(summary, name) if panel == MEAN else summary.thresholds(name, panel)
    rows = []
    for tau in taus:
        at = [(b, summary.decoding(name, b, tau)) for b in benchmarks]
        score = mean_over(summary.score(scale, name, b, d) for b, d in at)
        pace = mean_over(summary.tokens_per_forward(scale, name, b, d) for b, d in at)
        if score is None or pace is None:
            continue
        low, high = score.interval or (np.nan, np.nan)
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (scale, panel, name, tau, score.value, low, high, pace.value),
                    strict=True,
                )
            )
        )
    return rows


def draw(
    study: Study, results: Path, variant: str, baselines: Sequence[str], out_stem: Path
) -> list[Path]:
    """Draw it to ``<out_stem>.png`` and ``.pdf`` and return both paths."""
    with matplotlib.rc_context(fname=style.STYLE):
        made = figure(study, data(study, results, variant, baselines), variant, baselines)
    return style.save(made, out_stem)


def figure(study: Study, points: pd.DataFrame, variant: str, baselines: Sequence[str]) -> Figure:
    """Scales down, panels across."""
    scales, panels = study.scales_of(variant), [MEAN, *study.evaluation.panels]
    made = Figure(figsize=(3.5 * len(panels), 3.0 * len(scales) + 0.5), layout="constrained")
    axes = made.subplots(len(scales), len(panels), squeeze=False)
    for i, scale in enumerate(scales):
        for j, panel in enumerate(panels):
            ax = axes[i][j]
            shown = f"mean of {len(study.evaluation.benchmarks)}" if panel == MEAN else panel
            ax.set_title(f"{scale} · {shown}", loc="left")
            here = points[(points["scale"] == scale) & (points["panel"] == panel)]
            if here.empty:
                style.nothing(ax)
                continue
            for number, name in enumerate([variant, *baselines]):
                _line(ax, here[here["variant"] == name], number)
            if i == len(scales) - 1:
                ax.set_xlabel("tokens per forward")
            if j == 0:
                ax.set_ylabel("score (%)")
            ax.margins(x=0.12, y=0.12)
    handles = [
        Line2D([], [], **_look(number), label=name)
        for number, name in enumerate([variant, *baselines])
    ]
    made.legend(handles=handles, loc="outside lower center", ncols=4)
    return made


def _look(number: int) -> dict[str, Any]:
    """The variant in colour on a thick line, its baselines thinner; markers tell them apart too."""
    colours = [style.ORANGE, style.INK, style.BLUE, style.GREEN, style.PURPLE, style.SKY]
    marks = ["o", *style.MARKERS[1:], "P"]
    return {
        "color": colours[number % len(colours)],
        "marker": marks[number % len(marks)],
        "linewidth": 1.3 if number else 2.2,
        "linestyle": (0, (4, 2)) if number else "-",
        "markersize": 4 if number else 5,
    }


def _line(ax: Axes, line: pd.DataFrame, number: int) -> None:
    if line.empty:
        return
    look = _look(number)
    line = line.sort_values("tau", ascending=False)
    ax.vlines(
        line["forwards"], line["low"], line["high"], color=look["color"], alpha=0.3, linewidth=0.9
    )
    ax.plot(line["forwards"], line["score"], zorder=3 if number == 0 else 2, **look)
    if number == 0:
        _name_thresholds(ax, line, look["color"])


def _name_thresholds(ax: Axes, line: pd.DataFrame, colour: str) -> None:
    """Write each τ beside its point, but for those that would lie on the one before."""
    gap = 0.1 * float(np.ptp(line["forwards"]))
    told = -np.inf
    for row in as_rows(line):
        if row["forwards"] - told < gap:
            continue
        told = row["forwards"]
        ax.annotate(
            f"τ {row['tau']:g}",
            (row["forwards"], row["score"]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=7,
            color=colour,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
