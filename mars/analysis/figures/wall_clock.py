"""Wall-clock speed: ours and the paper's, against batch size and B_cache, and how efficient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mars.analysis import paper
from mars.analysis.figures import style
from mars.analysis.speed import (
    AR,
    AUTO,
    BLOCK,
    CURSOR,
    GENERATE,
    NONE,
    OPPONENTS,
    PAPER_METHODS,
    RELEASED,
    REPLAYED,
    STATIC,
    Grid,
    load_grid,
    prompts_decoded,
    threshold,
)
from mars.config import Study

TITLE = "Wall-clock speedup"
ALT = (
    "Speedup over the fastest AR decoding against batch size, one line for each cache; under it "
    "speedup against the block size of the cache, one line for each batch size; under that "
    "efficiency, speedup divided by tokens per forward, against batch size. One column for this "
    "study, one for its replayed acceptance where it has that, and one for the paper."
)
COLUMNS = ["source", "method", "cache_block", "batch_size", "speedup", "sd", "efficiency"]
OURS, PAPER = "ours", "paper"

LINES: dict[str, tuple[str, str, style.Dashes, str]] = {
    CURSOR: (style.GREEN, "D", "-", "cursor cache"),
    AUTO: (style.PURPLE, "v", "-", "cursor cache, draft auto"),
    BLOCK: (style.BLUE, "s", "-", "block cache, its best B_cache"),
    NONE: (style.ORANGE, "^", "-", "no cache"),
    RELEASED: (style.SKY, "o", "-", "algorithm as released"),
    AR: (style.INK, "x", (0, (4, 2)), "AR, our loop"),
    GENERATE: (style.GREY, "<", (0, (1, 1.5)), "AR, generate"),
    STATIC: (style.AMBER, "X", (0, (5, 1.5, 1, 1.5)), "AR, generate (static)"),
}
"""Colour, marker, dashes and name of each method."""


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: source (ours, replayed acceptance, paper) and those of ``COLUMNS`` after it.

    Ours is relative to the fastest AR method at the same batch size, the paper's to its AR with a
    KV cache. ``efficiency`` is over our own AR loop; the paper's is made from its Tables 4 and 5.
    """
    made = study.throughput
    rows: list[dict[str, Any]] = []
    if made and (tau := threshold(made)) is not None:
        rows += _measured(OURS, load_grid(study, results, tau))
    if made and made.replay:
        rows += _measured(REPLAYED, load_grid(study, results, None))
    return pd.DataFrame([*rows, *_papers()], columns=COLUMNS)


def _measured(source: str, grid: Grid) -> list[dict[str, Any]]:
    rows = []
    for s in grid.settings:
        speedup, efficiency = grid.speedup(s, grid.opponent(s.batch_size)), grid.efficiency(s)
        if speedup is not None:
            rows.append(
                {
                    "source": source,
                    "method": s.method,
                    "cache_block": s.cache_block,
                    "batch_size": s.batch_size,
                    "speedup": speedup.value,
                    "sd": speedup.sd,
                    "efficiency": efficiency and efficiency.value,
                }
            )
    return rows


def _papers() -> list[dict[str, Any]]:
    printed = paper.table("table5")
    names = {theirs: own for own, theirs in PAPER_METHODS.items() if own != RELEASED}
    rates = printed[printed["method"] == PAPER_METHODS[GENERATE]].set_index("batch_size")
    counts = paper.multi_token("7B", 4, paper.facts()["wall_clock"]["tau"], "tokens_per_forward")
    forwards = counts["GSM8K"] if counts else float("nan")
    rows = []
    for _, row in printed.iterrows():
        method = names[row["method"]]
        rate = row["tokens_per_s"] / rates["tokens_per_s"][row["batch_size"]]
        rows.append(
            {
                "source": PAPER,
                "method": method,
                "cache_block": row["cache_block"],
                "batch_size": row["batch_size"],
                "speedup": row["speedup"],
                "efficiency": rate / (1.0 if method in OPPONENTS else forwards),
            }
        )
    return rows


def figure(study: Study, results: Path) -> Figure:
    """One column a source: this study, the same at replayed acceptance, the paper."""
    points = data(study, results)
    made = study.throughput
    titles: dict[str, str] = {}
    if made is None or made.thresholds:
        at = f"{made.scale}, τ = {threshold(made):g}" if made else "this study"
        titles[OURS] = f"Ours ({at})"
    if made and made.replay:
        titles[REPLAYED] = f"Ours, {REPLAYED} ({made.replay.tokens_per_forward:g})"
    titles[PAPER] = "Paper (7B, one GPU)"
    drawn = Figure(figsize=(style.WIDE, 6.6), layout="constrained")
    axes = drawn.subplots(3, len(titles), squeeze=False)
    seen: dict[str, Any] = {}
    room: Axes | None = None  # a panel without a line, where the legend has room
    for j, (source, title) in enumerate(titles.items()):
        here = points[points["source"] == source]
        by_batch, by_block, efficiency = axes[:, j]
        by_batch.set_title(title, loc="left", fontsize=8)  # the longest fills its column
        if here.empty:
            for ax in axes[:, j]:
                style.nothing(ax)
            continue
        base = "AR (KV cache)" if source == PAPER else "the fastest AR"
        upper = here["speedup"] + here["sd"].fillna(0).astype(float)
        top = max(1.2, float(upper.max()) * 1.04)
        seen |= _by_batch(by_batch, here, "speedup")
        _scale(by_batch, f"speedup over {base}", top)
        blocks = here[here["method"] == BLOCK]
        if blocks["cache_block"].nunique() > 1:
            _by_block(by_block, blocks)
            _scale(by_block, f"speedup over {base}", top)
        else:
            by_block.axis("off")
            room = by_block
        seen |= _by_batch(efficiency, here[~here["method"].isin(OPPONENTS)], "efficiency")
        _scale(efficiency, "efficiency over own AR", None)
    order = [method for method in LINES if method in seen]
    handles, names = [seen[method] for method in order], [LINES[method][-1] for method in order]
    if room is not None:
        room.legend(handles, names, loc="center")
    elif handles:
        drawn.legend(handles, names, loc="outside lower center", ncols=4)
    return drawn


def _scale(ax: Axes, label: str, top: float | None) -> None:
    ax.axhline(1.0, color=style.INK, linewidth=0.8)
    ax.set_ylabel(label)
    ax.set_ylim(0, top)


def best_blocks(here: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The points with, of the block cache, the best B_cache at each batch size only."""
    blocks = here[here["method"] == BLOCK].dropna(subset=[quantity])
    best = blocks.loc[blocks.groupby("batch_size")[quantity].idxmax()]
    return pd.concat([here[here["method"] != BLOCK], best])


def _by_batch(ax: Axes, here: pd.DataFrame, quantity: str) -> dict[str, Any]:
    """Lines over batch sizes; returns one handle for each method drawn."""
    handles = {}
    best = best_blocks(here, quantity)
    for method, (colour, marker, dashes, _) in LINES.items():
        rows = best[best["method"] == method].dropna(subset=[quantity]).sort_values("batch_size")
        if rows.empty:
            continue
        spread = rows["sd"].fillna(0).astype(float) if quantity == "speedup" else None
        handles[method] = ax.errorbar(
            rows["batch_size"],
            rows[quantity],
            yerr=spread,
            color=colour,
            marker=marker,
            linestyle=dashes,
            linewidth=1.0 if method in OPPONENTS else 1.5,
            elinewidth=0.8,
        )
    _ticks(ax, here["batch_size"], "batch size")
    return handles


def _by_block(ax: Axes, blocks: pd.DataFrame) -> None:
    for i, (batch, rows) in enumerate(blocks.groupby("batch_size")):
        rows = rows.sort_values("cache_block")
        ax.errorbar(
            rows["cache_block"],
            rows["speedup"],
            yerr=rows["sd"].fillna(0).astype(float),
            color=style.BLOCK_COLOURS[i % len(style.BLOCK_COLOURS)],
            marker=style.MARKERS[i % len(style.MARKERS)],
            elinewidth=0.8,
            label=f"batch {batch}",
        )
    _ticks(ax, blocks["cache_block"], "B_cache (block cache)")
    ax.legend(loc="lower left", ncols=2, fontsize=style.SMALL)


def _ticks(ax: Axes, values: pd.Series, label: str) -> None:
    at = sorted(values.dropna().unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(at, [f"{value:.0f}" for value in at])
    ax.minorticks_off()
    ax.set_xlabel(label)


def caption(study: Study) -> str:
    """The caption, in plain text."""
    grid = study.throughput
    setting = "This study has no wall-clock grid."
    if grid:
        tau = threshold(grid)
        at = REPLAYED if tau is None else f"τ = {tau:g}"
        setting = (
            f"Ours: {grid.variant} of {grid.scale} at {at}, median of {grid.repeats} "
            f"repeats over {prompts_decoded(grid)} (bars: standard deviation over the repeats), "
            "relative to the fastest AR method at the same batch size (this suite's loop, "
            "transformers' generate with a dynamic cache, which is what the paper calls AR with a "
            "KV cache, or with a static one): the one that no other is faster than, by the "
            "medians of such ratios."
        )
        if grid.replay and tau is not None:
            setting += (
                f" The column of {REPLAYED} forces one drawn sequence of accepted counts on every "
                "method: speed at equal acceptance, no quality."
            )
    return (
        "Wall-clock speedup (ratio of seconds over the same prompts) against batch size for each "
        "cache, and against B_cache for each batch size; efficiency is speedup in tokens/s over "
        f"our own AR loop ÷ tokens per forward. {setting} The paper's values, at right, are of a "
        "7B model on a GPU: their shape compares, not their height. Its efficiency is made from "
        "its Tables 4 (GSM8K, B = 4) and 5."
    )
