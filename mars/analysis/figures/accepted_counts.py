"""How many tokens a forward accepts: the histogram of accepted counts, by threshold and B."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mars.analysis import labels
from mars.analysis.figures import style
from mars.analysis.generations import load_generations
from mars.analysis.results import CELL, of_every_seed
from mars.config import Study

TITLE = "Accepted tokens per forward"
ALT = (
    "One panel for each scale and benchmark. For each block size and threshold a bar of all "
    "forwards, divided by how many tokens they accepted, from one at the left to a whole draft at "
    "the right; the mean is written at the bar's end."
)
BINS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (9, 16), (17, None))
"""Accepted counts that share a colour; the last is open. The data has each count by itself."""


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: scale, benchmark, variant, block_size, tau, accepted, forwards (many), share (of 1).

    MARS with the SFT loss, of all seeds together, at thresholds below 1: at 1 every count is one.
    """
    names = [n for n, v in study.variants.items() if labels.paper_model(v) == "MARS"]
    names = [n for n in names if study.variants[n].alignment == "decoder"]
    found = load_generations(
        (study, results),
        variant=names,
        benchmark=study.evaluation.panels,
        decoder="mars",
        rule="probability",
        block_size=style.block_sizes(study),
    )
    keys = ["scale", "benchmark", "variant", "block_size", "tau"]
    rows = []
    found = of_every_seed(study, found[found["tau"] < 1], CELL)
    for key, answers in found.groupby(keys, observed=True):
        counts = np.bincount(np.concatenate(list(answers["accepted"])))
        total = counts.sum()
        rows += [(*key, n, many, many / total) for n, many in enumerate(counts) if n and many]
    return pd.DataFrame(rows, columns=[*keys, "accepted", "forwards", "share"])


def figure(study: Study, results: Path) -> Figure:
    """Scales down, benchmarks across, as the frontier."""
    counts = data(study, results)
    scales, panels = list(study.scales), study.evaluation.panels
    found = counts[["variant", "tau"]].drop_duplicates().itertuples(index=False, name=None)
    bars = sorted(found, key=lambda bar: (labels.order(bar[0], study.variants[bar[0]]), -bar[1]))
    height = 0.13 * max(len(bars), 8) + 0.55
    made = Figure(figsize=(style.WIDE, height * len(scales) + 0.4), layout="constrained")
    axes = made.subplots(len(scales), max(len(panels), 1), squeeze=False, sharey=len(counts) > 0)
    used: set[int] = set()
    for i, scale in enumerate(scales):
        for j, benchmark in enumerate(panels):
            ax = axes[i][j]
            ax.set_title(style.panel_title(study, scale, benchmark), loc="left")
            here = counts[(counts["scale"] == scale) & (counts["benchmark"] == benchmark)]
            if here.empty:
                style.nothing(ax)
                continue
            used |= _panel(study, ax, here, bars, j == 0)
            if i == len(scales) - 1:
                ax.set_xlabel("share of forwards (%)")
    if used:
        colours = style.sequence(len(BINS))
        handles = [Patch(color=colours[k], label=_name(k)) for k in sorted(used)]
        made.legend(
            handles=handles,
            title="tokens accepted by a forward",
            loc="outside lower center",
            ncols=len(handles),
            handlelength=1.2,
        )
    return made


def _panel(
    study: Study, ax: Axes, here: pd.DataFrame, bars: list[tuple[str, float]], named: bool
) -> set[int]:
    """One bar a variant and threshold, ``named`` at the left; returns the bins drawn."""
    colours = style.sequence(len(BINS))
    used = set()
    places, y, last = [], 0.0, None
    for name, tau in bars:
        y += 1.0 if last in (None, name) else 1.7
        last = name
        places.append(y)
        mine = here[(here["variant"] == name) & (here["tau"] == tau)]
        if mine.empty:
            ax.text(1, y, "–", va="center", color=style.GREY)
            continue
        left = 0.0
        for k, (low, high) in enumerate(BINS):
            inside = mine["accepted"].between(low, high or np.inf)
            share = 100 * float(mine.loc[inside, "share"].sum())
            if share:
                ax.barh(y, share, 0.86, left=left, color=colours[k], linewidth=0)
                used.add(k)
            left += share
        mean = float((mine["accepted"] * mine["share"]).sum())
        ax.text(102, y, f"{mean:.2f}", va="center", fontsize=style.SMALL, color=style.INK)
    ax.text(102, places[0] - 1, "mean", va="center", fontsize=style.SMALL, color=style.GREY)
    ax.set_yticks(places, [f"τ {tau:g}" for _, tau in bars], fontsize=style.SMALL)
    for name in dict.fromkeys(name for name, _ in bars if named):
        at = [y for y, (other, _) in zip(places, bars, strict=True) if other == name]
        size, _, own = labels.line(study, name).partition(", ")
        ax.annotate(
            "\n".join([size, *textwrap.wrap(own, 18)]),
            (0, float(np.mean(at))),
            xycoords=("axes fraction", "data"),
            xytext=(-36, 0),
            textcoords="offset points",
            rotation=90,
            va="center",
            ha="center",
            multialignment="center",
            fontsize=style.SMALL if own else None,
            annotation_clip=False,
        )
    ax.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    ax.set_xlim(0, 100)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return used


def _name(k: int) -> str:
    low, high = BINS[k]
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low}–{high}"


def caption(study: Study) -> str:
    """The caption, in plain text."""
    return (
        "How many tokens a forward accepts, as shares of all forwards, for each block size B and "
        "threshold τ (the numbers at the left), MARS with the SFT loss; the number at a bar's end "
        "is the mean, tokens per forward. A forward always accepts its first token. Prefill "
        "counts, and so do the last forwards of answers, which end-of-turn cuts short."
    )
