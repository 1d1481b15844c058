"""The AR signal: the share of loss terms that are plain next-token prediction, against B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mars.analysis import labels, paper
from mars.analysis.figures import style
from mars.analysis.results import of_every_seed, training_costs
from mars.config import Study

TITLE = "AR signal fraction against block size"
ALT = (
    "Share of autoregressive loss terms against block size. Without the SFT loss it falls as one "
    "over B; with it, it stays above one half. Fractions counted in the batches lie on the line "
    "for finite responses, slightly above the limit."
)


def fraction(
    block_size: float | np.ndarray, ar_weight: float, response: float = np.inf
) -> float | np.ndarray:
    """The expected AR share of loss terms for responses of ``response`` tokens, random phase."""
    f = (1 + (block_size - 1) / response) / block_size
    return (ar_weight + f) / (1 + ar_weight)


def data(study: Study, results: Path) -> pd.DataFrame:
    """Counted and printed fractions.

    Columns: source (ours, paper), scale, variant, block_size, ar_weight, alignment, fraction,
    expected (exact, for the mean response length of that run; paper: the limit), response
    (mean tokens of a response).
    """
    costs = of_every_seed(study, training_costs(study, results), ["scale", "variant"])
    rows: list[dict[str, Any]] = []
    for scale, name in study.runs():
        variant = study.variants[name]
        mine = costs[(costs["scale"] == scale) & (costs["variant"] == name)]
        if variant.objective != "mars" or mine.empty or "ar_signal_fraction" not in mine:
            continue
        counted = float(mine["ar_signal_fraction"].mean())
        response = _response_length(mine)
        rows.append(
            {
                "source": "ours",
                "scale": scale,
                "variant": name,
                "block_size": variant.block_size,
                "ar_weight": variant.ar_weight,
                "alignment": variant.alignment,
                "fraction": counted,
                "expected": (
                    float(fraction(variant.block_size, variant.ar_weight, response))
                    if variant.alignment == "decoder" and np.isfinite(response)
                    else np.nan
                ),
                "response": response,
            }
        )
    for model, weight in ((labels.NO_SFT, 0.0), ("MARS", 1.0)):
        for size in (4, 8, 16):
            printed = paper.signal_fraction(model, size)
            rows.append(
                {
                    "source": "paper",
                    "scale": "0.5B",
                    "variant": model,
                    "block_size": size,
                    "ar_weight": weight,
                    "alignment": "",
                    "fraction": printed,
                    "expected": float(fraction(size, weight)),
                    "response": np.inf,
                }
            )
    return pd.DataFrame(rows)


def _response_length(mine: pd.DataFrame) -> float:
    """Mean tokens of a response; a run that does not count responses has one an example."""
    many = mine["responses"] if "responses" in mine else mine.get("examples")
    tokens = mine.get("response_tokens")
    if many is None or tokens is None:
        return float("nan")
    return float(tokens.sum() / many.sum())


def figure(study: Study, results: Path) -> Figure:
    """One panel: lines of theory, marks of counts."""
    points = data(study, results)
    ours = points[points["source"] == "ours"]
    made = Figure(figsize=(style.COLUMN, 3.5), layout="constrained")
    ax = made.subplots()
    last = max([16, *points["block_size"]])
    grid = np.geomspace(2, last, 100)
    length = float(ours["response"].mean()) if len(ours) else np.nan
    for weight, colour, name in (
        (1.0, style.BLUE, "with the SFT loss"),
        (0.0, style.ORANGE, "without the SFT loss"),
    ):
        ax.plot(grid, fraction(grid, weight), color=colour, linestyle=(0, (1, 1.5)), linewidth=1.2)
        if np.isfinite(length):
            ax.plot(grid, fraction(grid, weight, length), color=colour)
        above = float(fraction(last / 2.8, weight, length if np.isfinite(length) else np.inf))
        ax.annotate(
            name,
            (last, above),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=colour,
        )
        here = ours[(ours["ar_weight"] == weight) & (ours["alignment"] == "decoder")]
        ax.plot(here["block_size"], here["fraction"], "o", color=colour, markersize=4)
        printed = points[(points["source"] == "paper") & (points["ar_weight"] == weight)]
        ax.plot(
            printed["block_size"],
            printed["fraction"],
            "D",
            markersize=6,
            markerfacecolor="none",
            markeredgecolor=style.GREY,
        )
    released = ours[ours["alignment"] == "stream"]
    ax.plot(released["block_size"], released["fraction"], "X", color=style.PURPLE, markersize=5)
    counted = "counted in our batches" + ("" if len(ours) else ": no results yet")
    ax.plot([], [], "o", color=style.GREY, label=counted)
    if np.isfinite(length):
        label = f"exact, responses of {length:.0f} tokens"
        ax.plot([], [], "-", color=style.GREY, label=label)
    ax.plot([], [], linestyle=(0, (1, 1.5)), color=style.GREY, label="limit of long responses")
    ax.plot([], [], "D", mfc="none", mec=style.GREY, markersize=6, label="paper, Table 3")
    if len(released):
        label = "counted, alignment as released"
        ax.plot([], [], "X", color=style.PURPLE, markersize=5, label=label)
    ax.set_xscale("log", base=2)
    sizes = sorted({2, 4, 8, 16, *(int(b) for b in points["block_size"])})
    ax.set_xticks(sizes, [str(s) for s in sizes])
    ax.minorticks_off()
    ax.set_xlabel("block size B")
    ax.set_ylabel("AR share of loss terms")
    ax.set_ylim(-0.03, 0.85)
    made.legend(loc="outside lower center", ncols=1)
    return made


def caption(study: Study) -> str:
    """The caption, in plain text."""
    text = (
        "Share of loss terms that are plain next-token prediction, against block size. Marks are "
        "counted in the batches trained on; solid lines are the exact expectation for responses "
        "of that mean length R, f = (1 + (B − 1)/R)/B without the SFT loss and (1 + f)/2 with "
        "it; dotted lines are their limit for long responses, which is what the paper prints "
        "(diamonds)."
    )
    if any(v.objective == "mars" and v.alignment == "stream" for v in study.variants.values()):
        text += (
            " In the alignment as released no masked-stream term is ever a plain next-token "
            "prediction (cross)."
        )
    return text
