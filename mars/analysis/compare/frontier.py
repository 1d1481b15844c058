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

from mars.analysis import labels
from mars.analysis.compare.numbers import common_thresholds
from mars.analysis.figures import beside, style
from mars.analysis.results import as_rows
from mars.analysis.statistics import average
from mars.analysis.summary import Summary, summarise
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
        score = average(summary.score(scale, name, b, d) for b, d in at)
        pace = average(summary.tokens_per_forward(scale, name, b, d) for b, d in at)
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
    """Scales down, panels across; three of them in a row at most."""
    scales, panels = study.scales_of(variant), [MEAN, *study.evaluation.panels]
    across = min(len(panels), 3)
    rows = -(-len(panels) // across)  # of each scale
    down = rows * len(scales)
    made = Figure(figsize=(style.WIDE, 2.2 * down + 0.4), layout="constrained")
    axes = made.subplots(down, across, squeeze=False)
    for i, scale in enumerate(scales):
        mine = axes[i * rows : (i + 1) * rows].flat
        for ax in mine[len(panels) :]:
            ax.remove()
        for j, (ax, panel) in enumerate(zip(mine, panels, strict=False)):
            shown = f"mean of {len(study.evaluation.benchmarks)}" if panel == MEAN else panel
            ax.set_title(f"{scale} · {shown}", loc="left")
            here = points[(points["scale"] == scale) & (points["panel"] == panel)]
            if here.empty:
                style.nothing(ax)
                continue
            _panel(ax, here, [variant, *baselines])
            if i == len(scales) - 1 and j + across >= len(panels):
                ax.set_xlabel("tokens per forward")
            if j % across == 0:
                ax.set_ylabel("score (%)")
    handles = [
        Line2D([], [], **_look(number), label=name)
        for number, name in enumerate([variant, *baselines])
    ]
    made.legend(handles=handles, loc="outside lower center", ncols=3)
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


def _panel(ax: Axes, here: pd.DataFrame, names: Sequence[str]) -> None:
    """The curves of a panel, the thresholds of the first written beside its points."""
    lines = []
    for number, name in enumerate(names):
        line = here[here["variant"] == name].sort_values("tau", ascending=False)
        look = _look(number)
        at, low, high = line["forwards"], line["low"], line["high"]
        ax.vlines(at, low, high, color=look["color"], alpha=0.3, linewidth=0.9)
        ax.plot(at, line["score"], zorder=3 if number == 0 else 2, **look)
        lines.append(line[["forwards", "score"]].to_numpy("float64"))
    ax.margins(x=0.15, y=0.12)
    ax.autoscale_view()
    first = as_rows(here[here["variant"] == names[0]].sort_values("tau"))
    ends, between = [*first[-1:], *first[:-1][:1]], first[1:-1][::-1]
    told = [(f"τ {row['tau']:g}", row["forwards"], row["score"]) for row in [*ends, *between]]
    beside.name(ax, told, lines, _look(0)["color"], needed=len(ends))
