"""Tokens per forward by benchmark, for each block size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mars.analysis import labels, paper
from mars.analysis.figures import style
from mars.analysis.statistics import average
from mars.analysis.summary import summarise
from mars.config import Study

TITLE = "Tokens per forward by benchmark"
ALT = (
    "Bars of tokens per forward for each benchmark and their mean, grouped by block size, one "
    "panel a scale; hollow diamonds are the paper's values."
)


def threshold(study: Study) -> float:
    """The threshold that every benchmark is read at: the highest below 1."""
    return max((t for t in study.evaluation.thresholds if t < 1), default=1.0)


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: scale, variant, column (Avg included), block_size, forwards, low, high, paper."""
    summary = summarise(study, results)
    tau = threshold(study)
    rows: list[dict[str, Any]] = []
    for scale in study.scales:
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            if labels.paper_model(variant) != "MARS":
                continue
            found = paper.multi_token(
                study.scales[scale].paper, variant.block_size, tau, "tokens_per_forward"
            )
            theirs = labels.paper_row(study, found) or {}
            cells = {
                title: summary.tokens_per_forward(scale, name, b, summary.decoding(name, b, tau))
                for b, title in labels.columns(study).items()
            }
            for title, cell in {**cells, "Avg": average(cells.values())}.items():
                if cell is None:
                    continue
                low, high = cell.interval or (np.nan, np.nan)
                rows.append(
                    {
                        "scale": scale,
                        "variant": name,
                        "column": title,
                        "block_size": variant.block_size,
                        "forwards": cell.value,
                        "low": low,
                        "high": high,
                        "paper": theirs.get(title, np.nan),
                    }
                )
    names = ["scale", "variant", "column", "block_size", "forwards", "low", "high", "paper"]
    return pd.DataFrame(rows, columns=names)


def figure(study: Study, results: Path) -> Figure:
    """One panel a scale, one under the other."""
    bars = data(study, results)
    scales = list(study.scales)
    made = Figure(figsize=(style.WIDE, 2.0 * len(scales) + 0.5), layout="constrained")
    axes = made.subplots(len(scales), 1, squeeze=False)[:, 0]
    titles = [*labels.columns(study).values(), "Avg"]
    variants = list(dict.fromkeys(bars["variant"]))
    named: dict[str, Any] = {}
    for ax, scale in zip(axes, scales, strict=True):
        ax.set_title(style.scale_title(study, scale), loc="left")
        here = bars[bars["scale"] == scale]
        if here.empty:
            style.nothing(ax)
            continue
        width = 0.8 / len(variants)
        for i, name in enumerate(variants):
            mine = here[here["variant"] == name]
            if mine.empty:
                continue
            x = np.array([titles.index(c) for c in mine["column"]]) + (i + 0.5) * width - 0.4
            below, above = mine["forwards"] - mine["low"], mine["high"] - mine["forwards"]
            released = study.variants[name].alignment == "stream"
            named[labels.line(study, name)] = ax.bar(
                x,
                mine["forwards"] - 1,
                width * 0.9,
                bottom=1,
                color=style.look(study, name)[0],
                hatch="////" if released else None,
                edgecolor="white",
                linewidth=0,
                yerr=np.abs(np.stack([below, above])),
                error_kw={"elinewidth": 0.8, "ecolor": style.INK},
            )
            ax.plot(
                x,
                mine["paper"],
                "D",
                markersize=4,
                markerfacecolor="white",
                markeredgecolor=style.INK,
                markeredgewidth=0.9,
            )
        ax.set_xticks(range(len(titles)), titles)
        ax.grid(axis="x", visible=False)
        ax.set_ylabel("tokens per forward")
        ax.set_ylim(bottom=0.95)
    if named:
        (named["paper"],) = axes[0].plot([], [], "D", mfc="white", mec=style.INK, markersize=4)
        across = 5 if len(named) < 6 else 3
        made.legend(named.values(), named.keys(), loc="outside lower center", ncols=across)
    return made


def caption(study: Study) -> str:
    """The caption, in plain text."""
    return (
        f"Tokens per forward of MARS at τ = {threshold(study):g}: Σ kept tokens ÷ Σ forwards of "
        "a benchmark, prefill included; Avg is the plain mean. Bars start at 1, one token a "
        "forward. Diamonds are the paper's values on its own benchmarks; error bars are 95 % "
        f"bootstrap intervals {labels.covers(study)}."
    )
