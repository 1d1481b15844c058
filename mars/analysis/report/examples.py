"""Example generations: real answers, coloured by how many tokens each forward accepted.

The same documents at every threshold that was swept. They are chosen by their number, before their
scores are looked at: the first ones whose text is kept, and comes to the tokens that were counted,
at all thresholds (see ``mars.analysis.spans``).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tokenizers import Tokenizer

from mars.analysis import labels
from mars.analysis.generations import load_generations
from mars.analysis.results import as_rows, load_evaluation
from mars.analysis.spans import Span, spans, tokenizer_of
from mars.config import Study

BENCHMARKS, DOCUMENTS = 3, 2
"""At most so many benchmarks, and documents of each: a page should stay light."""
CANDIDATES = 40
"""Documents of a benchmark that are looked through for those."""
LONGEST = 1500
"""Characters of an answer, at most."""

Key = tuple[str, str]
"""A document: its sub-task, and its number in it."""


@dataclass(frozen=True)
class Reading:
    """One answer to a document."""

    spans: list[Span]
    output: str
    score: float | None


@dataclass(frozen=True)
class Shown:
    """The examples of one benchmark; ``rows`` are its lines of ``evaluation.csv``, by τ."""

    benchmark: str
    column: str
    rows: dict[float, dict[str, Any]]
    readings: dict[Key, dict[float, Reading]]


@dataclass(frozen=True)
class Chosen:
    """Whose answers are shown, at which thresholds, from 1 down."""

    seed: int
    scale: str
    variant: str
    taus: list[float]
    shown: list[Shown]


def choose(study: Study, results: Path) -> Chosen | None:
    """The examples of a study: of the MARS variant that its wall-clock grid runs, if it can be.

    None where no MARS variant has texts at two thresholds or more.
    """
    rows = as_rows(load_evaluation(study, results))
    for seed, scale, variant in _preferred(study):
        mine = [
            row
            for row in rows
            if (row["seed"], row["scale"], row["variant"]) == (seed, scale, variant)
            and (row["decoder"], row["rule"]) == ("mars", "probability")
        ]
        found = _of_run(study, results, (seed, scale, variant), mine)
        if found is not None:
            return found
    return None


def _preferred(study: Study) -> Iterator[tuple[int, str, str]]:
    """Runs in the order in which they would be shown."""
    grid = study.throughput
    runs = [
        (scale, name)
        for scale in study.scales
        for name in labels.ordered(study, scale)
        if labels.paper_model(study.variants[name]) == "MARS"
    ]
    if grid:
        runs.sort(key=lambda run: run != (grid.scale, grid.variant))
    return ((seed, scale, name) for seed in study.seeds for scale, name in runs)


def _of_run(
    study: Study, results: Path, run: tuple[int, str, str], rows: list[dict[str, Any]]
) -> Chosen | None:
    by_benchmark: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows:
        by_benchmark.setdefault(row["benchmark"], {})[float(row["tau"])] = row
    most = max((len(found) for found in by_benchmark.values()), default=0)
    tokenizer = tokenizer_of(study, results, *run) if most > 1 else None
    if tokenizer is None:
        return None
    taus = max((sorted(found, reverse=True) for found in by_benchmark.values()), key=len)
    shown: list[Shown] = []
    for benchmark, column in labels.columns(study).items():
        found = by_benchmark.get(benchmark, {})
        if sorted(found, reverse=True) != taus or len(shown) == BENCHMARKS:
            continue
        readings = _readings(study, results, found, tokenizer)
        if readings:
            shown.append(Shown(benchmark, column, found, readings))
    return Chosen(*run, taus, shown) if shown else None


def _readings(
    study: Study, results: Path, rows: dict[float, dict[str, Any]], tokenizer: Tokenizer
) -> dict[Key, dict[float, Reading]]:
    """The first documents that can be shown at every threshold."""
    found = load_generations(
        (study, results),
        records=[row["records"] for row in rows.values()],
        doc_id=list(range(CANDIDATES)),
        repeat=0,
    ).sort_values(["task", "doc_id"])
    by_tau: dict[float, dict[Key, Reading]] = {tau: {} for tau in rows}
    for record in as_rows(found):
        reading = _reading_of(record, tokenizer)
        if reading is not None:
            by_tau[record["tau"]][str(record["task"]), str(record["doc_id"])] = reading
    common = [key for key in next(iter(by_tau.values())) if all(key in r for r in by_tau.values())]
    return {key: {tau: by_tau[tau][key] for tau in by_tau} for key in common[:DOCUMENTS]}


def _reading_of(record: dict[str, Any], tokenizer: Tokenizer) -> Reading | None:
    """None where an answer cannot be shown."""
    found = spans(record, tokenizer)
    if found is None or len(record["output"]) > LONGEST:
        return None
    score = record["score"]
    return Reading(found, record["output"], None if pd.isna(score) else score)


# ---------------------------------------------------------------------------------------- HTML


def examples(study: Study, results: Path) -> str:
    """The examples as HTML; without scripts they are read at the highest threshold below 1."""
    chosen = choose(study, results)
    if chosen is None:
        return (
            "<p>No examples: they need the answers of a MARS variant at two thresholds or more, "
            "and the tokenizer of its checkpoint.</p>"
        )
    start = 1 if len(chosen.taus) > 1 and chosen.taus[0] == 1 else 0
    label = labels.label(chosen.variant, study.variants[chosen.variant])
    size = study.variants[chosen.variant].block_size
    counts = (s.accepted for found in _all_spans(chosen) for s in found)
    parts = [
        f"<p>Answers of {html.escape(label)}, B = {size}, at scale {html.escape(chosen.scale)}, "
        f"seed {chosen.seed}: each coloured piece is what one forward pass accepted. The documents "
        "are the same at every threshold, and were chosen by their number, not by their "
        "scores.</p>",
        "<div data-examples>",
        _control(chosen.taus, start),
        _legend(max(counts, default=1)),
    ]
    for one in chosen.shown:
        parts.append(_benchmark(one, chosen.taus, start))
    return "\n".join([*parts, "</div>"])


def _all_spans(chosen: Chosen) -> Iterator[list[Span]]:
    for one in chosen.shown:
        for readings in one.readings.values():
            yield from (reading.spans for reading in readings.values())


def _control(taus: list[float], start: int) -> str:
    names = [f"{tau:g}" for tau in taus]
    ticks = "".join(
        f'<button type="button" tabindex="-1" aria-pressed="false">{name}</button>'
        for name in names
    )
    return (
        '<div class="control" hidden><label for="tau">Threshold</label>'
        f'<output for="tau">τ = {names[start]}</output>'
        '<div class="slide">'
        f'<input type="range" id="tau" min="0" max="{len(names) - 1}" step="1" value="{start}" '
        f'autocomplete="off" data-taus="{" ".join(names)}">'
        f'<div class="ticks">{ticks}</div></div></div>'
    )


def _legend(most: int) -> str:
    kinds: dict[str, list[int]] = {}
    for count in range(1, most + 1):
        kinds.setdefault(_kind(count), []).append(count)
    items = "".join(
        f'<li><span class="{kind}">{counts[0]}'
        f"{f'–{counts[-1]}' if len(counts) > 1 else ''}</span></li>"
        for kind, counts in kinds.items()
    )
    return f'<div class="legend"><span>Tokens accepted by a forward</span><ul>{items}</ul></div>'


def _kind(accepted: int) -> str:
    """The class of a span's colour: each count up to 4, then 5–8 and more."""
    if accepted <= 4:
        return f"n{accepted}"
    return "n5" if accepted <= 8 else "n6"


def _at(tau: float, taus: list[float], start: int) -> str:
    return f'data-tau="{tau:g}"' + ("" if tau == taus[start] else " hidden")


def _benchmark(one: Shown, taus: list[float], start: int) -> str:
    title = one.benchmark if one.column == one.benchmark else f"{one.column} ({one.benchmark})"
    parts = [f"<h3>{html.escape(title)}</h3>"]
    for tau in taus:
        row = one.rows[tau]
        parts.append(
            f'<p class="sums" {_at(tau, taus, start)}>All {int(row["documents"])} documents at '
            f"τ = {tau:g}: <strong>{row['score']:.1f} %</strong>, "
            f"<strong>{row['tokens_per_forward']:.2f}</strong> tokens per forward.</p>"
        )
    for (task, number), readings in one.readings.items():
        name = f"Document {number}" + ("" if task == one.benchmark else f" of {task}")
        parts.append(f'<article class="example"><h4>{html.escape(name)}</h4>')
        first = readings[taus[0]]
        for tau in taus:
            parts.append(f"<div {_at(tau, taus, start)}>{_reading(readings[tau], first)}</div>")
        parts.append("</article>")
    return "\n".join(parts)


def _reading(reading: Reading, first: Reading) -> str:
    tokens, forwards = sum(s.accepted for s in reading.spans), len(reading.spans)
    same = "" if reading is first else ", the same text as at τ = 1"
    if reading.output != first.output:
        same = ", another text than at τ = 1"
    text = "".join(
        f'<span class="{_kind(s.accepted)}" title="{s.accepted} in one forward">'
        f"{html.escape(s.text)}</span>"
        for s in reading.spans
        if s.text
    )
    if re.match(r" \S", reading.output):  # words of many tokenizers begin with a space
        text = text.replace("> ", ">", 1)
    return (
        f'<p class="facts">{_verdict(reading.score)}{tokens} tokens in {forwards} forwards, '
        f"<strong>{tokens / forwards:.2f}</strong> per forward{same}</p>"
        f'<p class="answer">{text}</p>'
    )


def _verdict(score: float | None) -> str:
    if score is None:
        return ""
    if score in (0, 1):
        return (
            f'<span class="{"right" if score else "wrong"}">{"right" if score else "wrong"}</span> '
        )
    return f"score {score:.2f}, "
