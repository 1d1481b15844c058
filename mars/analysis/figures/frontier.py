"""The speed–quality frontier: score against tokens per forward, over the thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mars.analysis import labels, paper
from mars.analysis.figures import beside, style
from mars.analysis.results import as_rows
from mars.analysis.summary import summarise
from mars.config import Study

TITLE = "Speed–quality frontier"
ALT = (
    "One panel for each scale and benchmark: score in per cent against tokens per forward, a "
    "curve for each block size of MARS with and without the SFT loss, from threshold 1 at the "
    "left to 0.5 at the right, and AR SFT as a horizontal line. Pale discs lie under the "
    "points that no other beats in both; hollow markers are the paper's."
)
HALO: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 9.5, "color": style.BAND, "mew": 0}
"""What lies under the points of the Pareto set."""
THEIRS: dict[str, Any] = {"ls": (0, (1, 2)), "lw": 0.8, "ms": 6, "mfc": "none", "mew": 1.1}
"""How the paper's points look."""

Groups = Iterable[tuple[Any, pd.DataFrame]]


def data(study: Study, results: Path) -> pd.DataFrame:
    """Points of every curve.

    Columns: scale, benchmark, variant, curve (ar, sft, no_sft, paper), block_size, tau, score,
    low, high (95 %, documents), forwards (tokens per forward), pareto (no other point of ours in
    the panel has as high a score at as many tokens per forward). In rows of curve ``paper``, score
    is AR SFT's here plus the paper's own difference from its AR SFT.
    """
    summary = summarise(study, results)
    rows: list[dict[str, Any]] = []
    for scale in study.scales:
        reference = labels.reference(study, scale)
        for benchmark in study.evaluation.panels:
            base: float | None = None
            for name in labels.ordered(study, scale):
                variant = study.variants[name]
                curve = _curve(study, name)
                if curve is None or (curve == "ar" and name != reference):
                    continue
                for tau in summary.thresholds(name, benchmark):
                    at = summary.decoding(name, benchmark, tau)
                    score = summary.score(scale, name, benchmark, at)
                    count = summary.tokens_per_forward(scale, name, benchmark, at)
                    if score is None or count is None:
                        continue
                    if curve == "ar":
                        base = score.value
                    low, high = score.interval or (np.nan, np.nan)
                    rows.append(
                        {
                            "scale": scale,
                            "benchmark": benchmark,
                            "variant": name,
                            "curve": curve,
                            "block_size": variant.block_size,
                            "tau": tau,
                            "score": score.value,
                            "low": low,
                            "high": high,
                            "forwards": count.value,
                        }
                    )
            if base is not None:
                rows += _paper(study, scale, benchmark, base)
    names = ["scale", "benchmark", "variant", "curve", "block_size", "tau"]
    points = pd.DataFrame(rows, columns=[*names, "score", "low", "high", "forwards"])
    best = [i for _, panel in points.groupby(["scale", "benchmark"]) for i in _undominated(panel)]
    return points.assign(pareto=points.index.isin(best))


def _undominated(panel: pd.DataFrame) -> list[int]:
    """The index of the points that no other point of ours matches in one measure and beats in one.

    Going down in tokens per forward, a point belongs to them if its score is above all before it.
    """
    ours = panel[panel["curve"] != "paper"]
    ours = ours.sort_values(["forwards", "score"], ascending=False)
    above = ours["score"] > ours["score"].cummax().shift(fill_value=-np.inf)
    return list(ours.index[above])


def _curve(study: Study, name: str) -> str | None:
    variant = study.variants[name]
    if variant.objective == "mars" and variant.alignment == "decoder":
        return {"MARS": "sft", labels.NO_SFT: "no_sft"}.get(str(labels.paper_model(variant)))
    return "ar" if labels.paper_model(variant) == labels.AR_SFT else None


def _paper(study: Study, scale: str, benchmark: str, base: float) -> list[dict[str, Any]]:
    """The paper's points at τ = 1 and 0.95, each at its difference from the paper's AR SFT."""
    at = study.scales[scale].paper
    column = study.evaluation.benchmarks[benchmark].column
    theirs = paper.scores("table2", at, labels.AR_SFT, None)
    rows = []
    for size in style.block_sizes(study):
        one = paper.scores("table2", at, "MARS", size) or paper.scores("table3", at, "MARS", size)
        score = paper.multi_token(at, size, 0.95, "accuracy")
        count = paper.multi_token(at, size, 0.95, "tokens_per_forward")
        for tau, found, pace in ((1.0, one, {column: 1.0}), (0.95, score, count)):
            if theirs is None or found is None or pace is None or column not in found:
                continue
            rows.append(
                {
                    "scale": scale,
                    "benchmark": benchmark,
                    "variant": "paper",
                    "curve": "paper",
                    "block_size": size,
                    "tau": tau,
                    "score": base + found[column] - theirs[column],
                    "low": np.nan,
                    "high": np.nan,
                    "forwards": pace[column],
                }
            )
    return rows


def figure(study: Study, results: Path) -> Figure:
    """Scales down, benchmarks across."""
    points = data(study, results)
    scales, panels = list(study.scales), study.evaluation.panels
    made = Figure(figsize=(style.WIDE, 2.45 * len(scales) + 0.75), layout="constrained")
    axes = made.subplots(len(scales), max(len(panels), 1), squeeze=False)
    for i, scale in enumerate(scales):
        for j, benchmark in enumerate(panels):
            ax = axes[i][j]
            ax.set_title(style.panel_title(study, scale, benchmark), loc="left")
            here = points[(points["scale"] == scale) & (points["benchmark"] == benchmark)]
            if here.empty:
                style.nothing(ax)
                continue
            _panel(study, ax, here)
            if i == len(scales) - 1:
                ax.set_xlabel("tokens per forward")
            if j == 0:
                ax.set_ylabel("score (%)")
    handles = _legend(study, points)
    longest = max((len(str(handle.get_label())) for handle in handles[:-1]), default=0)
    made.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4 if longest < 24 else 3,
        handlelength=2.6,
        columnspacing=1.4,
    )
    return made


def _panel(study: Study, ax: Axes, here: pd.DataFrame) -> None:
    best = here[here["pareto"]]
    ax.plot(best["forwards"], best["score"], **HALO, zorder=1.5)
    ar = here[here["curve"] == "ar"]
    for row in as_rows(ar):
        ax.axhline(row["score"], color=style.INK, linewidth=1.0, linestyle=(0, (1, 1.5)))
        ax.axhspan(row["low"], row["high"], color=style.INK, alpha=0.06, linewidth=0)
        ax.plot([1.0], [row["score"]], marker="*", markersize=8, color=style.INK, linestyle="none")
    lines = []
    groups: Groups = here.groupby(["curve", "variant", "block_size"])
    for (curve, name, size), line in groups:
        line = line.sort_values("tau", ascending=False)
        lines.append(line[["forwards", "score"]].to_numpy("float64"))
        if curve == "paper":
            colour, marker = style.size_look(study, size)
            ax.plot(line["forwards"], line["score"], **THEIRS, marker=marker, color=colour)
        elif curve != "ar":
            _curve_of(ax, line, curve == "sft", *style.look(study, name))
    span = here[["score", "low", "high"]]
    low, high = float(np.nanmin(span)), float(np.nanmax(span))
    right = float(here["forwards"].max())
    ax.set_xlim(0.96, max(right + 0.16 * (right - 0.96), 1.3))
    ax.set_ylim(max(0.0, low - 1.5), min(100.0, high + 1.5))
    _name_thresholds(study, ax, here[here["curve"] == "sft"], lines)


def _curve_of(ax: Axes, line: pd.DataFrame, solid: bool, colour: str, marker: str) -> None:
    if solid:
        ax.vlines(
            line["forwards"], line["low"], line["high"], color=colour, alpha=0.3, linewidth=0.9
        )
    ax.plot(
        line["forwards"],
        line["score"],
        color=colour,
        marker=marker,
        linestyle="-" if solid else (0, (4, 2)),
        linewidth=1.4 if solid else 1.0,
        markersize=3.8 if solid else 2.8,
        alpha=1.0 if solid else 0.85,
    )


def _name_thresholds(
    study: Study, ax: Axes, curves: pd.DataFrame, lines: list[beside.Points]
) -> None:
    """Write the thresholds along the curve of the largest block, the first and the last."""
    if curves.empty:
        return
    name = str(curves["variant"].to_numpy()[curves["block_size"].to_numpy().argmax()])
    line = curves[(curves["variant"] == name) & (curves["tau"] < 1)].sort_values("tau")
    ends = as_rows(line.iloc[[0, -1]] if len(line) > 1 else line)
    told = [(f"τ = {row['tau']:g}", row["forwards"], row["score"]) for row in ends]
    beside.name(ax, told, lines, style.look(study, name)[0])


def _legend(study: Study, points: pd.DataFrame) -> list[Line2D]:
    handles = []
    for size in style.block_sizes(study):
        colour, marker = style.size_look(study, size)
        handles.append(Line2D([], [], color=colour, marker=marker, label=f"MARS, B = {size}"))
    curves = set(points["curve"])
    ours = points[points["curve"].isin(["sft", "no_sft"])]
    further = [name for name in dict.fromkeys(ours["variant"]) if labels.rank(study, name)]
    handles += [style.handle(study, name) for name in further]
    if "no_sft" in curves:
        dashed = (0, (4, 2))
        handles.append(Line2D([], [], color=style.GREY, ls=dashed, label="without the SFT loss"))
    if "ar" in curves:
        handles.append(
            Line2D([], [], color=style.INK, ls=(0, (1, 1.5)), marker="*", ms=8, label="AR SFT")
        )
    if len(points):
        handles.append(Line2D([], [], **HALO, label="Pareto set"))
    if "paper" in curves:
        label = "paper, τ 1 and 0.95 (its change from AR SFT)"
        handles.append(Line2D([], [], **THEIRS, color=style.GREY, marker="o", label=label))
    return handles


def caption(study: Study) -> str:
    """The caption, in plain text."""
    taus = sorted({1.0, *study.evaluation.thresholds, *study.evaluation.sweep_thresholds})
    text = (
        f"Speed–quality frontier. Score against tokens per forward as the threshold τ falls from "
        f"1 (left) to {taus[0]:g} (right), one curve a block size B; dashed: trained without the "
        "SFT loss. The star and dotted line are AR SFT. Vertical bars and the band are 95 % "
        f"bootstrap intervals {labels.covers(study)}; dashed curves have some too, which "
        "are in the data and not drawn. Pale discs mark the Pareto set: our points "
        "that no other matches in one measure and beats in the other, as measured."
    )
    if any(scale.paper for scale in study.scales.values()):
        text += (
            " Hollow markers are the paper's models at τ = 1 and 0.95, joined by dots where it "
            "gives both: at its tokens per forward, and as far from our AR SFT as they are from "
            "the paper's, since absolute scores of different models and benchmarks do not compare."
        )
    return text
