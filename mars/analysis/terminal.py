"""Results in the terminal: tables drawn with rich, or as JSON; filtered by run and benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from mars.analysis import labels
from mars.analysis.missing import missing
from mars.analysis.render import Column, Row, Section, Table, Told, is_absent, show
from mars.analysis.results import ResultsError
from mars.analysis.statistics import Estimate, Repeated, average
from mars.analysis.summary import summarise
from mars.analysis.tables import TABLES, build
from mars.config import Study

PACE = "tokens_per_forward"
"""Column of the mean over benchmarks; with ``:`` and a benchmark's name behind it, of that one."""

AT_MOST = 3
"""Gaps that are named where a table is empty."""


def scores(study: Study, results: Path) -> Table:
    """Every run at every threshold: its score on each benchmark, and tokens per forward."""
    summary = summarise(study, results)
    names = labels.columns(study)
    rows: list[Row] = []
    for scale in study.scales:
        for variant in labels.ordered(study, scale):
            taus = {t for b in names for t in summary.thresholds(variant, b)}
            for tau in sorted(taus, reverse=True):
                at = {b: summary.decoding(variant, b, tau) for b in names}
                found = {b: summary.score(scale, variant, b, d) for b, d in at.items()}
                if not any(found.values()):
                    continue
                pace = {
                    f"{PACE}:{b}": summary.tokens_per_forward(scale, variant, b, d)
                    for b, d in at.items()
                }
                rows.append(
                    {"scale": scale, "variant": variant, "tau": tau, **found, **pace}
                    | {"Avg": average(found.values()), PACE: average(pace.values())}
                )
    columns = [
        Column("scale", "Scale", text=True),
        Column("variant", "Variant", text=True),
        Column("tau", "τ", text=True),
        *(Column(b, title, estimate=True) for b, title in names.items()),
        Column("Avg", "Avg", estimate=True, show_interval=True),
        Column(PACE, "Tokens/forward", 2, estimate=True),
    ]
    notes = [
        "Scores in per cent; Avg is the plain mean of the benchmarks, with a 95 % bootstrap "
        f"interval {labels.covers(study)}. Tokens/forward is the mean over the benchmarks."
    ]
    title = f"Scores of study “{study.study}”"
    return Table("scores", title, columns, [Section(title, rows)], notes, len(study.seeds))


def find(name: str | None, study: Study, results: Path) -> Table:
    """The table of a name; all scores where none is given."""
    if name in (None, "scores"):
        return scores(study, results)
    if name not in TABLES:
        raise ResultsError(f"--table: unknown {name!r}; choose from scores, {', '.join(TABLES)}")
    return build(str(name), study, results)


# ------------------------------------------------------------------------------------- filters


def narrow(
    table: Table, study: Study, scale: str | None, variant: str | None, benchmark: str | None
) -> Table:
    """What filters leave of a table.

    Raises:
        ResultsError: the study has no such scale, variant or benchmark, or the table knows none.
    """
    rows = [row for section in table.sections for row in section.rows]
    if scale is not None:
        _known("--scale", scale, study.scales)
        _has("--scale", table, rows, "scale")
        table = _keep(table, {"scale": {scale, study.scales[scale].paper}})
    if variant is not None:
        _known("--variant", variant, study.variants)
        _has("--variant", table, rows, "variant", "model")
        table = _keep(table, _names(study, variant))
    if benchmark is not None:
        table = _narrow_benchmark(table, study, rows, benchmark)
    if rows and table.empty:
        asked = ", ".join(filter(None, [scale, variant, benchmark]))
        raise ResultsError(f"the table {table.name} has no row of {asked}; ask for less")
    return table


def _known(flag: str, name: str, among: Mapping[str, Any]) -> None:
    if name not in among:
        raise ResultsError(f"{flag}: unknown {name!r}; choose from {', '.join(among)}")


def _has(flag: str, table: Table, rows: list[Row], *keys: str) -> None:
    if rows and not any(key in row for row in rows for key in keys):
        raise ResultsError(f"{flag}: the table {table.name} does not tell them apart; leave it out")


def _names(study: Study, variant: str) -> dict[str, set[Any]]:
    """What a row of a variant has in the columns that say whose it is."""
    made = study.variants[variant]
    return {
        "variant": {variant},
        "model": {labels.label(variant, made)},
        "paper_model": {labels.paper_model(made)},
        "block_size": {labels.drafted(made), made.block_size, None},
    }


def _keep(table: Table, wanted: dict[str, set[Any]]) -> Table:
    """The rows whose columns have what is wanted; what a row has no column for does not count."""

    def kept(row: Row) -> bool:
        keys = wanted.keys() - ({"model", "block_size"} if "variant" in row else set())
        # the paper's rows have its names, which are those of several of our variants
        own = "paper_model" if row.get("source") == "paper" else "model"
        return all(row[key] in wanted[own if key == "model" else key] for key in keys if key in row)

    sections = [replace(s, rows=[r for r in s.rows if kept(r)]) for s in table.sections]
    return replace(table, sections=sections)


def _narrow_benchmark(table: Table, study: Study, rows: list[Row], benchmark: str) -> Table:
    names = labels.columns(study)
    _known("--benchmark", benchmark, names)
    if any(column.key in names for column in table.columns):
        others = {*names, "Avg"} - {benchmark}
        own = f"{PACE}:{benchmark}"
        columns = [
            replace(c, key=own) if c.key == PACE else c
            for c in table.columns
            if c.key not in others
        ]
        return replace(table, columns=columns)
    _has("--benchmark", table, rows, "benchmark")
    return _keep(table, {"benchmark": {benchmark, names[benchmark]}})


# -------------------------------------------------------------------------------------- output


def as_json(table: Table, study: Study) -> dict[str, Any]:
    """A table as plain values: an estimate has its bounds, and what is missing is null."""
    return {
        "study": study.study,
        "table": table.name,
        "title": table.title,
        "sections": [
            {
                "title": section.title,
                "rows": [
                    {c.key: _plain(row.get(c.key)) for c in table.columns} for row in section.rows
                ],
            }
            for section in table.sections
        ],
        "notes": table.notes,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        low, high = value.interval or (None, None)
        return {"value": _plain(value.value), "low": low, "high": high}
    if isinstance(value, Told):
        return value.value
    if isinstance(value, Repeated):
        return {"value": _plain(value.value), "sd": value.sd}
    if is_absent(value):
        return None
    return value.item() if hasattr(value, "item") else value


def draw(table: Table, study: Study, results: Path, console: Console) -> None:
    """Print a table; where it is empty, what is missing and how to make it."""
    parts: list[RenderableType] = []
    for section in table.sections:
        if section.rows:
            parts += [Text(section.title, style="bold"), _drawn(table, section)]
    if parts:
        parts += [Text(f"· {note}", style="dim") for note in table.notes]
    else:
        parts.append(Text(f"{table.title}: nothing to show."))
    gaps = missing(study, results)
    if gaps and table.empty:
        parts += [Text(f"missing: {gap.what}\n    {gap.command}") for gap in gaps[:AT_MOST]]
    if gaps:
        lost = "one result is" if len(gaps) == 1 else f"{len(gaps)} results are"
        parts.append(Text(f"{lost} missing; the report names the command that makes each."))
    console.print(Group(*parts))


def _drawn(table: Table, section: Section) -> Drawn:
    made = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in table.columns:
        made.add_column(column.title, justify="left" if column.text else "right")
    for row in section.rows:
        style = "dim italic" if row.get("source") == "paper" else ""
        cells = [Text(show(column, row, section.signed)) for column in table.columns]
        made.add_row(*cells, style=style)
    return made
