"""How often a drafted token is right, against the confidence it was accepted with.

*Right* means: the token that the same checkpoint emits there at τ = 1, with the same text before
it. So an answer at a low τ is held against the answer at τ = 1 to the same prompt, up to the first
token in which they differ; what follows has another text before it, and says nothing. A record has
the confidence of kept tokens only, so a drafted token is seen where its confidence reached τ, and
so did all before it in its draft: the lowest τ of the study shows most.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import binomtest

from mars.analysis import labels
from mars.analysis.figures import style
from mars.analysis.generations import load_generations
from mars.analysis.results import CELL, as_rows, of_every_seed
from mars.analysis.spans import encoded, tokenizer_of
from mars.config import Study

TITLE = "Reliability of the confidence"
ALT = (
    "One panel for each scale and block size: how often drafted tokens are the ones that decoding "
    "one token at a time gives, against the confidence they were accepted with, one line for each "
    "place in the draft, and the diagonal on which confidence and frequency agree."
)
EDGES = np.array([0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0])
"""Of the bins of confidence."""

OFFSETS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (8, 15), (16, None))
"""Places in a draft that share a line; 0 is the token that is always accepted."""

FEWEST = 20
"""A point of fewer tokens is in the data and is not drawn."""

DECIMALS = 5
"""Of a confidence in a record: kept in single precision since, it would fall short of an edge."""

END = -1
"""Stands for the end-of-turn token, which texts do not have."""

COLUMNS = (
    *("scale", "variant", "block_size", "first", "last", "low", "high", "tokens", "right"),
    *("confidence", "lower", "upper"),
)

Groups = Iterable[tuple[Any, pd.DataFrame]]


def data(study: Study, results: Path) -> pd.DataFrame:
    """Judged tokens, by place in the draft and confidence, of all seeds and panel benchmarks.

    Columns: scale, variant, block_size, first and last (place in the draft), low and high (of the
    bin), tokens, right (share), confidence (mean), lower and upper (Wilson's 95 % interval).
    """
    tokens = judged(study, results)
    place = np.searchsorted([first for first, _ in OFFSETS], tokens["offset"], side="right") - 1
    inside = np.searchsorted(EDGES, tokens["confidence"], side="right") - 1
    tokens = tokens.assign(place=place, bin=np.clip(inside, 0, len(EDGES) - 2))
    rows: list[tuple[Any, ...]] = []
    groups: Groups = tokens.groupby(["scale", "variant", "block_size", "place", "bin"])
    for (scale, variant, size, at, k), mine in groups:
        first, last = OFFSETS[at]
        many, right = len(mine), int(mine["right"].sum())
        bounds = binomtest(right, many).proportion_ci(method="wilson")
        rows.append(
            (
                *(scale, variant, size, first, last, EDGES[k], EDGES[k + 1], many, right / many),
                *(float(mine["confidence"].mean()), bounds.low, bounds.high),
            )
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def judged(study: Study, results: Path) -> pd.DataFrame:
    """Each kept token of the lowest τ of which it is known whether it is right.

    Columns: scale, variant, block_size, benchmark, offset (its place in the draft), confidence,
    right. Answers whose text does not come to the tokens that were counted are left out.
    """
    taus = lowest(study)
    found = load_generations(
        (study, results),
        variant=sorted({variant for variant, _ in taus}),
        benchmark=sorted({benchmark for _, benchmark in taus}),
        decoder="mars",
        rule="probability",
        tau=[1.0, *taus.values()],
    )
    found = of_every_seed(study, found, CELL)
    parts: list[tuple[tuple[Any, ...], NDArray[Any], NDArray[Any], NDArray[Any]]] = []
    groups: Groups = found.groupby(["seed", "scale", "variant", "benchmark"], observed=True)
    for (seed, scale, variant, benchmark), answers in groups:
        tokenizer = tokenizer_of(study, results, seed, scale, variant)
        tau = taus.get((variant, benchmark))
        if tokenizer is None or tau is None:
            continue
        size = study.variants[variant].block_size
        answers = answers[answers["block_size"] == size]
        one = {_document(row): row for row in as_rows(answers[answers["tau"] == 1])}
        for row in as_rows(answers[answers["tau"] == tau]):
            mine = _ids(row, tokenizer)
            reference = _ids(one.get(_document(row)), tokenizer)
            if mine is None or reference is None:
                continue
            right = agreement(mine, reference)
            places = np.concatenate([np.arange(n) for n in row["accepted"]])
            head = (scale, variant, size, benchmark)
            many = len(right)
            parts.append((head, places[:many], row["confidence"][:many], right))
    heads = pd.DataFrame(
        [head for head, *_ in parts], columns=["scale", "variant", "block_size", "benchmark"]
    )
    lengths = [len(right) for *_, right in parts]
    tokens = heads.iloc[np.repeat(np.arange(len(parts)), lengths)].reset_index(drop=True)
    long = zip(*(arrays for _, *arrays in parts), strict=True) if parts else [[], [], []]
    names = ("offset", "confidence", "right")
    made = {n: np.concatenate([*each, []]) for n, each in zip(names, long, strict=True)}
    made["confidence"] = np.round(made["confidence"].astype("float64"), DECIMALS)
    return tokens.assign(**made)


def lowest(study: Study) -> dict[tuple[str, str], float]:
    """The lowest τ below 1 of each (variant, panel benchmark): MARS with the SFT loss."""
    found = {}
    for name, variant in study.variants.items():
        if labels.paper_model(variant) != "MARS" or variant.alignment != "decoder":
            continue
        for benchmark in study.evaluation.panels:
            taus = [
                d.tau
                for d in study.decodings(name, benchmark)
                if d.decoder == "mars" and d.rule == "probability" and d.tau < 1
            ]
            if taus:
                found[name, benchmark] = min(taus)
    return found


def agreement(mine: list[int], reference: list[int]) -> NDArray[np.bool_]:
    """Whether each token is the reference's, up to the first that is not, and that included."""
    known = min(len(mine), len(reference))
    same = np.array(mine[:known]) == np.array(reference[:known])
    return same[: known if same.all() else int(np.argmin(same)) + 1]


def _document(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["doc_id"], row["repeat"]


def _ids(row: dict[str, Any] | None, tokenizer: Any) -> list[int] | None:
    """The token ids of an answer, as far as its text tells them; None where it does not."""
    if (
        row is None
        or not isinstance(row["output"], str)
        or (found := encoded(row, tokenizer)) is None
    ):
        return None
    if row["finish"] == "end_of_turn":
        return [*found.ids, END]
    return found.ids[:-1] if row["finish"] == "stop" else found.ids  # a stop may cut a token


# ------------------------------------------------------------------------------------- drawing


def figure(study: Study, results: Path) -> Figure:
    """Scales down, variants across."""
    bins = data(study, results)
    scales, names = list(study.scales), _variants(study)
    made = Figure(figsize=(style.WIDE, 2.1 * len(scales) + 0.65), layout="constrained")
    axes = made.subplots(len(scales), max(len(names), 1), squeeze=False, sharey=len(bins) > 0)
    drawn: dict[int, Any] = {}
    seen = bins[(bins["first"] > 0) & (bins["tokens"] >= FEWEST)]
    low = float(min(seen["low"].min(), seen["right"].min())) if len(seen) else 0.0
    for i, scale in enumerate(scales):
        for j, name in enumerate(names):
            ax = axes[i][j]
            size, _, own = labels.line(study, name).partition(", ")
            ax.set_title("\n".join([f"{scale} · {size}", *textwrap.wrap(own, 24)]), loc="left")
            here = bins[(bins["scale"] == scale) & (bins["variant"] == name)]
            if here.empty:
                style.nothing(ax)
                continue
            drawn |= _panel(ax, here)
            ax.set_xlim(float(seen["low"].min()) - 0.02 if len(seen) else 0.0, 1.02)
            ax.set_ylim(low - 0.02, 1.02)
            if i == len(scales) - 1:
                ax.set_xlabel("confidence")
            if j == 0:
                ax.set_ylabel("share right")
    if drawn:
        places = sorted(drawn)
        made.legend(
            [drawn[at] for at in places],
            [_name(at) for at in places],
            title="place in the draft (0 is the token that is always accepted)",
            loc="outside lower center",
            ncols=len(places),
        )
    return made


def _variants(study: Study) -> list[str]:
    return sorted({n for n, _ in lowest(study)}, key=lambda n: labels.order(n, study.variants[n]))


def _panel(ax: Axes, here: pd.DataFrame) -> dict[int, Any]:
    colours = style.sequence(len(OFFSETS) - 1)
    ax.plot([0, 1], [0, 1], color=style.GREY, lw=0.8, ls=(0, (1, 1.5)), zorder=1)
    handles = {}
    for at, line in _lines(here):
        shown = line[line["tokens"] >= FEWEST]
        error = np.abs(shown[["lower", "upper"]].to_numpy() - shown[["right"]].to_numpy()).T
        handles[at] = ax.errorbar(
            shown["confidence"],
            shown["right"],
            yerr=error,
            color=colours[at - 1],
            marker=style.MARKERS[(at - 1) % len(style.MARKERS)],
            elinewidth=0.7,
        )
    drafted = here[here["first"] > 0]
    if many := int(drafted["tokens"].sum()):
        sure, right = (
            100 * float((drafted["tokens"] * drafted[name]).sum()) / many
            for name in ("confidence", "right")
        )
        said = f"{many:,} drafted tokens\n{sure:.1f} % sure\n{right:.1f} % right"
        ax.text(
            0.97, 0.05, said, transform=ax.transAxes, ha="right", va="bottom",
            fontsize=style.SMALL, color=style.INK,
        )  # fmt: skip
    return handles


def _lines(here: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    for at, (first, _) in enumerate(OFFSETS):
        line = here[(here["first"] == first) & (first > 0)]
        if len(line):
            yield at, line.sort_values("confidence")


def _name(at: int) -> str:
    first, last = OFFSETS[at]
    if last is None:
        return f"{first} or more"
    return str(first) if first == last else f"{first}–{last}"


def caption(study: Study) -> str:
    """The caption, in plain text."""
    taus = sorted(set(lowest(study).values()))
    at = " and ".join(f"{tau:g}" for tau in taus) or "the lowest threshold"
    panels = ", ".join(study.evaluation.panels)
    return (
        "How often a drafted token is right, against its confidence, by its place in the draft; "
        "on the dotted line they agree. Right means: what the same checkpoint emits there at "
        f"τ = 1 after the same text. Answers at τ = {at} ({panels}) are compared with those at "
        "τ = 1 up to the first token that differs, that one included; nothing after it counts. "
        "Only tokens that were accepted have a confidence on record, so none is below the "
        f"threshold. Points of fewer than {FEWEST} tokens are not drawn; bars are Wilson's 95 % "
        "intervals, tokens taken as independent. Place 0 reads no mask, so it is what τ = 1 "
        "emits, and is not drawn."
    )
