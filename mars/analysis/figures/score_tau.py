"""Score against the threshold: what each step down in τ costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mars.analysis import labels
from mars.analysis.figures import style
from mars.analysis.summary import summarise
from mars.config import Study

TITLE = "Score against the threshold"
ALT = (
    "One panel for each scale and benchmark: score in per cent against the threshold, from 1 at "
    "the left down to the lowest at the right, one line a block size with 95 % intervals, dashed "
    "without the SFT loss; AR SFT is a horizontal line."
)
COLUMNS = ["scale", "benchmark", "variant", "block_size", "tau", "score", "low", "high"]


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: scale, benchmark, variant, block_size, tau, score, low, high (95 %, documents).

    AR SFT (block_size 1) at τ = 1, and MARS with and without the SFT loss at every threshold.
    Benchmarks that are read at fewer than three thresholds are left out.
    """
    summary = summarise(study, results)
    rows = []
    for scale in study.scales:
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            model = labels.paper_model(variant)
            alone = name == labels.reference(study, scale)
            if not alone and (
                model not in ("MARS", labels.NO_SFT) or variant.alignment != "decoder"
            ):
                continue
            for benchmark in benchmarks(study):
                for tau in summary.thresholds(name, benchmark):
                    at = summary.decoding(name, benchmark, tau)
                    score = summary.score(scale, name, benchmark, at)
                    if score is not None:
                        low, high = score.interval or (np.nan, np.nan)
                        size = labels.drafted(variant) or 1
                        rows.append((scale, benchmark, name, size, tau, score.value, low, high))
    return pd.DataFrame(rows, columns=COLUMNS)


def benchmarks(study: Study) -> list[str]:
    """Those that are read at enough thresholds to show a curve, in the study's order."""
    made = [n for n, v in study.variants.items() if labels.paper_model(v) == "MARS"]

    def swept(benchmark: str) -> bool:
        found = (study.decodings(name, benchmark) for name in made)
        return max((len({d.tau for d in each}) for each in found), default=0) > 2

    return [b for b in study.evaluation.benchmarks if swept(b)]


def figure(study: Study, results: Path) -> Figure:
    """Scales down, benchmarks across; three benchmarks a row at most."""
    points = data(study, results)
    panels = [(s, b) for s in study.scales for b in benchmarks(study)]
    across = min(len(benchmarks(study)), 3) or 1
    down = -(-max(len(panels), 1) // across)
    made = Figure(figsize=(style.WIDE, 2.2 * down + 0.4), layout="constrained")
    axes = made.subplots(down, across, squeeze=False)
    for ax in axes.flat[max(len(panels), 1) :]:
        ax.set_visible(False)
    if not panels:
        style.nothing(axes[0][0])
    for ax, (scale, benchmark) in zip(axes.flat, panels, strict=False):
        ax.set_title(style.panel_title(study, scale, benchmark), loc="left")
        here = points[(points["scale"] == scale) & (points["benchmark"] == benchmark)]
        if here.empty:
            style.nothing(ax)
            continue
        _panel(study, ax, here)
        ax.set_xlabel("threshold τ")
        ax.set_ylabel("score (%)")
    dashed = (0, (4, 2))
    further = [n for n in dict.fromkeys(points["variant"]) if labels.rank(study, n)]
    handles = [
        *(style.handle(study, name) for name in further if study.variants[name].ar_weight),
        Line2D([], [], color=style.GREY, label="with the SFT loss"),
        Line2D([], [], color=style.GREY, ls=dashed, label="without the SFT loss"),
        Line2D([], [], color=style.INK, ls=(0, (1, 1.5)), label="AR SFT"),
    ]
    made.legend(handles=handles, loc="outside lower center", ncols=3, handlelength=2.6)
    return made


def _panel(study: Study, ax: Axes, here: pd.DataFrame) -> None:
    ends = {}
    beside = 0
    for name, line in here.groupby("variant", sort=False):
        line = line.sort_values("tau", ascending=False)
        variant = study.variants[str(name)]
        size = labels.drafted(variant)
        if size is None:
            ax.axhline(line["score"].iloc[0], color=style.INK, lw=1.0, ls=(0, (1, 1.5)), zorder=1)
            continue
        solid = bool(variant.ar_weight)
        colour, marker = style.look(study, str(name))
        if solid:
            aside = 0.005 * (beside - 1)  # bars beside each other
            beside += 1
            x = line["tau"] - aside
            ax.vlines(x, line["low"], line["high"], color=colour, alpha=0.3, lw=0.9)
            if not labels.rank(study, str(name)):
                ends[f"B = {size}"] = (float(line["score"].iloc[-1]), colour)
        dashes = "-" if solid else (0, (4, 2))
        ax.plot(
            line["tau"], line["score"], color=colour, marker=marker, ls=dashes,
            lw=1.4 if solid else 1.0, ms=3.8 if solid else 2.8,
        )  # fmt: skip
    last = float(here["tau"].min())
    ax.set_xlim(1.01, last - 0.01)
    low, high = ax.get_ylim()
    gap = 0.075 * (high - low)
    heights = style.spread([score for score, _ in ends.values()], gap)
    for (label, (_, colour)), height in zip(ends.items(), heights, strict=True):
        ax.annotate(
            label,
            (last, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=style.SMALL,
            annotation_clip=False,
        )
    ax.set_ylim(low, high)


def caption(study: Study) -> str:
    """The caption, in plain text."""
    return (
        "Score against the threshold τ that a drafted token's confidence must reach; τ = 1 is one "
        "token a forward. One line a block size B; dashed: trained without the SFT loss; dotted: "
        f"AR SFT. Bars are 95 % bootstrap intervals {labels.covers(study)}. Benchmarks of the "
        "study that are read at more than two thresholds."
    )
