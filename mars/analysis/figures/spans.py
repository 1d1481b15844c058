"""Where in a text the accepted spans lie: one answer of each benchmark, coloured by forward."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from mars.analysis import labels
from mars.analysis.figures import style
from mars.analysis.generations import load_generations
from mars.analysis.results import as_rows
from mars.analysis.spans import spans, tokenizer_of
from mars.config import Study

TITLE = "Where the accepted spans lie"
ALT = (
    "One answer of each benchmark as text. What one forward accepted lies on one patch of colour, "
    "the darker the more tokens it has."
)
COLUMNS = [
    *("scale", "variant", "benchmark", "task", "doc_id", "tau", "score", "tokens", "forwards"),
    *("span", "text", "accepted"),
]
SHADES = ("#f0f0f0", "#d3e3f0", "#a8cbe3", "#7cb3d6", "#f2c98f")
"""Of one accepted token, two, three, four, and more: pale enough for the text upon them."""

TYPE = 7.0
"""Points."""
WIDTH = 112
"""Characters of a line: as many of this size as a page is wide."""
SIGN = 0.60205 * TYPE / 72
"""Width of a character, inches: DejaVu Sans Mono's is 1233 of 2048 units."""
LEADING = 0.15
"""From line to line, inches."""
LINES = 7
"""Of an answer; a longer one ends in an ellipsis."""
ENOUGH = 8
"""Tokens that an answer must have to show anything."""
RETURN = "⏎"


def data(study: Study, results: Path) -> pd.DataFrame:
    """A row for each forward of the answers shown.

    Columns: scale, variant, benchmark, task, doc_id, tau, score, tokens, forwards, span (from 0),
    text, accepted. Of each benchmark the first document, by number, whose answer was not cut, has
    some tokens, and comes to the tokens that were counted: chosen before looking at the answer.
    """
    chosen = which(study)
    if chosen is None:
        return pd.DataFrame(columns=COLUMNS)
    scale, variant, tau = chosen
    found = load_generations(
        (study, results),
        seed=study.seeds[0],
        scale=scale,
        variant=variant,
        decoder="mars",
        rule="probability",
        block_size=study.variants[variant].block_size,
        tau=tau,
    )
    tokenizer = tokenizer_of(study, results, study.seeds[0], scale, variant)
    if tokenizer is None:
        return pd.DataFrame(columns=COLUMNS)
    rows: list[dict[str, Any]] = []
    for benchmark in study.evaluation.benchmarks:
        answers = found[(found["benchmark"] == benchmark) & (found["tokens"] >= ENOUGH)]
        answers = answers[~answers["truncated"].astype(bool)]
        for row in as_rows(answers.sort_values(["doc_id", "task", "repeat"])):
            made = spans(row, tokenizer)
            if made is not None:
                head = {key: row[key] for key in COLUMNS if key in row}
                rows += [
                    {**head, "span": i, "text": span.text, "accepted": span.accepted}
                    for i, span in enumerate(made)
                ]
                break
    return pd.DataFrame(rows, columns=COLUMNS)


def which(study: Study) -> tuple[str, str, float] | None:
    """The last scale, its MARS of the smallest B, and the highest τ below 1; None without them."""
    taus = [tau for tau in study.evaluation.thresholds if tau < 1]
    for scale in reversed(study.scales):
        names = [
            name
            for name in labels.ordered(study, scale)
            if labels.paper_model(study.variants[name]) == "MARS"
            and study.variants[name].alignment == "decoder"
        ]
        if names and taus:
            return scale, min(names, key=lambda n: study.variants[n].block_size), max(taus)
    return None


# ------------------------------------------------------------------------------------- drawing


def figure(study: Study, results: Path) -> Figure:
    """One text under the other; there are no axes."""
    shown = data(study, results)
    answers = [mine for _, mine in shown.groupby("benchmark", sort=False)]
    laid = [
        lay_out([(t, n) for t, n in zip(a["text"], a["accepted"], strict=True)]) for a in answers
    ]
    lines = sum(len(each) for each in laid) + 2.2 * len(laid)
    below, tall = 0.55, max(lines, 6) * LEADING
    made = Figure(figsize=(style.WIDE, tall + below))
    beside = (style.WIDE - WIDTH * SIGN) / 2
    width, height = made.get_size_inches()
    ax = made.add_axes((beside / width, below / height, WIDTH * SIGN / width, tall / height))
    if not answers:
        style.nothing(ax)
        return made
    ax.axis("off")
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(lines, 0)
    y = 0.0
    for answer, rows in zip(answers, laid, strict=True):
        heading = _heading(study, answer)
        ax.text(0, y + 0.5, heading, va="center", weight="bold", parse_math=False)
        y += 1.2
        for row in rows:
            _line(ax, row, y)
            y += 1
        y += 1.0
    seen = sorted({_shade(n) for n in shown["accepted"]})
    handles = [Patch(facecolor=SHADES[k], edgecolor=style.FAINT, label=_name(k)) for k in seen]
    made.legend(
        handles=handles,
        title="tokens accepted by a forward",
        loc="lower center",
        ncols=len(handles),
    )
    return made


Run = tuple[int, str, int]
"""Column at which a run of text starts, the text, and how many tokens its forward accepted."""


def lay_out(
    pieces: list[tuple[str, int]], width: int = WIDTH, most: int = LINES
) -> list[list[Run]]:
    """Lines of runs: broken at spaces as a paragraph is, a span that is broken continuing below.

    Args:
        pieces: the text of each forward, and how many tokens it accepted.
        width, most: characters of a line, and lines; what does not fit ends in an ellipsis.
    """
    whole = "".join(text for text, _ in pieces).replace("\r", "")
    owners = [i for i, (text, _) in enumerate(pieces) for _ in text.replace("\r", "")]
    lines: list[list[Run]] = []
    for a, b in _breaks(whole, width):
        if len(lines) == most:
            column, text, n = lines[-1][-1]
            lines[-1][-1] = (column, text[: max(0, width - column - 1)].rstrip() + " …", n)
            break
        runs: list[Run] = []
        for k in range(a, b):
            sign = RETURN if whole[k] == "\n" else whole[k]
            if runs and owners[k] == owners[k - 1] and k > a:
                column, text, n = runs[-1]
                runs[-1] = (column, text + sign, n)
            else:
                runs.append((k - a, sign, pieces[owners[k]][1]))
        lines.append(runs)
    return lines


def _breaks(text: str, width: int) -> list[tuple[int, int]]:
    """(start, end) of each line; ends after a line break, or after the last space that fits."""
    found, start = [], 0
    while start < len(text):
        end = min(start + width, len(text))
        newline = text.find("\n", start, end)
        if newline >= 0:
            end = newline + 1
        elif end < len(text) and (space := text.rfind(" ", start + 1, end)) > start:
            end = space
        found.append((start, end))
        start = end
    return found


def _line(ax: Axes, runs: list[Run], y: float) -> None:
    for column, text, accepted in runs:
        shade = SHADES[_shade(accepted)]
        box = Rectangle((column + 0.08, y + 0.06), len(text) - 0.16, 0.88, color=shade, lw=0)
        ax.add_patch(box)
        ax.text(
            column, y + 0.5, text, family="DejaVu Sans Mono", va="center_baseline", size=TYPE,
            parse_math=False,  # an answer's dollars are no formula
        )  # fmt: skip


def _heading(study: Study, answer: pd.DataFrame) -> str:
    row = answer.iloc[0]
    column = study.evaluation.benchmarks[row["benchmark"]].column
    rate = row["tokens"] / row["forwards"]
    score = row["score"]
    verdict = "not scored" if pd.isna(score) else "right" if score == 1 else "wrong"
    if not pd.isna(score) and 0 < score < 1:
        verdict = f"score {score:.2f}"
    where = row["task"] if row["task"] != row["benchmark"] else row["benchmark"]
    title = textwrap.shorten(f"{column}: {where}, document {row['doc_id']}", 60, placeholder="…")
    return (
        f"{title} · {row['tokens']} tokens in {row['forwards']} forwards ({rate:.2f}) · {verdict}"
    )


def _shade(accepted: int) -> int:
    return min(int(accepted), len(SHADES)) - 1


def _name(k: int) -> str:
    return str(k + 1) if k < len(SHADES) - 1 else f"{k + 1} or more"


def caption(study: Study) -> str:
    """The caption, in plain text."""
    chosen = which(study)
    if chosen is None:
        return "Where in a text the accepted spans lie. This study decodes nothing at τ below 1."
    scale, variant, tau = chosen
    return (
        f"Where in a text the accepted spans lie: {variant} of {scale} at τ = {tau:g}, one answer "
        "a benchmark. Each patch is what one forward accepted; a forward whose patch is not there "
        "accepted the end of turn only. The document is the first of its benchmark, by number, "
        "whose answer was not cut by the budget, is not very short, and tokenises to the tokens "
        "that were counted; it was not chosen by what it shows."
    )
