"""Wall-clock speedup: ours and the paper's, against batch size and against B_cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mars.analysis import paper
from mars.analysis.figures import style
from mars.analysis.tables.speed import METHODS, PAPER_METHODS, wall_clock_medians
from mars.config import Study

TITLE = "Wall-clock speedup"
ALT = (
    "Four panels. Upper row: speedup over cached AR decoding against batch size, one line for "
    "each cache; lower row: speedup against the block size of the cache, one line for each batch "
    "size. Left: this study. Right: the paper."
)
AR, GENERATE = METHODS[("ar", None)], METHODS[("generate", None)]
NONE, BLOCK, CURSOR = (METHODS[("mars", c)] for c in ("none", "block", "cursor"))


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: source (ours, paper), method, cache_block, batch_size, speedup, low, high.

    Ours is relative to this suite's own AR loop (to transformers' generate where there is none),
    the paper's to its AR with a KV cache.
    """
    medians = wall_clock_medians(study, results)
    fair = bool(medians["speedup_ar"].notna().any()) if len(medians) else False
    speedup = medians["speedup_ar"] if fair else medians["speedup_generate"]
    mine = pd.DataFrame(
        {
            "source": "ours",
            "method": medians["label"],
            "cache_block": medians["cache_block"],
            "batch_size": medians["batch_size"],
            "speedup": speedup,
        }
    )
    rows = paper.table("table5")
    names = {theirs: own for own, theirs in PAPER_METHODS.items()}
    theirs = pd.DataFrame(
        {
            "source": "paper",
            "method": rows["method"].map(names),
            "cache_block": rows["cache_block"],
            "batch_size": rows["batch_size"],
            "speedup": rows["speedup"],
        }
    )
    parts = [part for part in (mine, theirs) if len(part)]
    return pd.concat(parts, ignore_index=True)


def figure(study: Study, results: Path) -> Figure:
    """Ours on the left, the paper on the right."""
    points = data(study, results)
    made = Figure(figsize=(8.2, 6.2), layout="constrained")
    axes = made.subplots(2, 2, sharey="col")
    grid = study.throughput
    where = f"this study, {grid.scale}" if grid else "this study"
    titles = {"ours": f"Ours ({where})", "paper": "Paper (7B, one GPU)"}
    for j, source in enumerate(("ours", "paper")):
        here = points[points["source"] == source]
        axes[0][j].set_title(titles[source], loc="left")
        if here.empty:
            style.nothing(axes[0][j])
            style.nothing(axes[1][j])
            continue
        _by_batch(axes[0][j], here)
        _by_block(axes[1][j], here)
        base = AR if source == "ours" and (here["method"] == AR).any() else "AR (KV cache)"
        if source == "ours" and base != AR:
            base = "generate"
        for ax in axes[:, j]:
            ax.axhline(1.0, color=style.INK, linewidth=1.0)
            ax.set_ylabel("speedup over " + ("our AR loop" if base == AR else base))
            ax.set_ylim(0, max(1.2, float(here["speedup"].max()) * 1.12))
    return made


def _by_batch(ax: Axes, here: pd.DataFrame) -> None:
    batches = sorted(here["batch_size"].unique())
    blocks = sorted(here["cache_block"].dropna().unique())
    shades = np.linspace(0.35, 1.0, max(len(blocks), 1))
    lines: list[tuple[str, str, float, pd.DataFrame]] = []
    for method, colour, text in ((NONE, style.ORANGE, "no cache"), (CURSOR, style.GREEN, "cursor")):
        lines.append((text, colour, 1.0, here[here["method"] == method]))
    if (here["method"] == AR).any():
        lines.append(("generate", style.GREY, 1.0, here[here["method"] == GENERATE]))
    for block, shade in zip(blocks, shades, strict=False):
        mine = here[(here["method"] == BLOCK) & (here["cache_block"] == block)]
        lines.append((f"block {block:.0f}", style.BLUE, float(shade), mine))
    lines = [line for line in lines if len(line[3])]
    ends = []
    for _, colour, shade, rows in lines:
        rows = rows.sort_values("batch_size")
        ax.plot(rows["batch_size"], rows["speedup"], "-o", color=colour, alpha=shade)
        ends.append(float(rows["speedup"].iloc[-1]))
    gap = 0.068 * max(1.2, float(here["speedup"].max()) * 1.12)
    for (text, colour, shade, rows), y in zip(lines, style.spread(ends, gap), strict=True):
        ax.annotate(
            text,
            (float(rows["batch_size"].max()), y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
            alpha=max(shade, 0.7),
            annotation_clip=False,
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [str(b) for b in batches])
    ax.minorticks_off()
    ax.set_xlabel("batch size")


def _by_block(ax: Axes, here: pd.DataFrame) -> None:
    mine = here[here["method"] == BLOCK]
    ax.set_xlabel("B_cache (block cache)")
    if mine.empty:
        style.nothing(ax, "no block cache here")
        return
    colours = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
    for i, (batch, rows) in enumerate(mine.groupby("batch_size")):
        rows = rows.sort_values("cache_block")
        ax.plot(
            rows["cache_block"],
            rows["speedup"],
            color=colours[i % len(colours)],
            marker=style.MARKERS[i % len(style.MARKERS)],
            label=f"batch {batch}",
        )
    ax.set_xscale("log", base=2)
    blocks = sorted(mine["cache_block"].unique())
    ax.set_xticks(blocks, [f"{b:.0f}" for b in blocks])
    ax.minorticks_off()
    ax.legend(loc="lower left")


def caption(study: Study) -> str:
    """The caption, in plain text."""
    grid = study.throughput
    setting = "This study has no wall-clock grid."
    if grid:
        setting = (
            f"Ours: {grid.variant} of {grid.scale} at τ = {grid.tau:g}, median of {grid.repeats} "
            f"repeats over {grid.prompts} prompts, relative to this suite's own AR loop at the "
            "same batch size (the grey line is transformers' generate, which is what the paper "
            "calls AR with a KV cache)."
        )
    return (
        "Wall-clock speedup (ratio of seconds over the same prompts) against batch size for each "
        f"cache, and against B_cache for each batch size. {setting} The paper's values, at right, "
        "are of a 7B model on a GPU: their shape compares, not their height."
    )
