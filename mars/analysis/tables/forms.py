"""Tables 2 to 5 in the paper's own layout, three times: ours, the paper's, and the difference.

The table of a study has our rows and the paper's one under the other. These forms have one kind of
row each, so that they can be laid beside the printed page, or put into another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mars.analysis import labels, paper
from mars.analysis.parts import FORMS
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.statistics import Estimate, Repeated, holm
from mars.analysis.tables.quality import PAIRED, RELATIONS, SAME_MODELS
from mars.analysis.tables.wall_clock import HEAD
from mars.config import Study

OURS, PAPER, DIFFERENCE = FORMS

NO_SCORES = (
    "These are not the paper's models and benchmarks, so scores themselves are not subtracted: "
    "only differences and ratios compare."
)
MINUS_TITLE = "ours minus the paper’s"
MINUS = (
    "Ours minus the paper's. Intervals cover the documents of ours only; the paper's numbers are "
    "taken as printed."
)

TESTS = (
    "p is McNemar's exact one where scores are right or wrong and there is one seed, else the "
    "paired bootstrap's, as Avg's; of the hypothesis that a row and AR SFT score the same, "
    "corrected by Holm for all cells of that part."
)


def forms(table: Table, study: Study, results: Path) -> dict[str, Table]:
    """The forms of one of Tables 2 to 5, from the table of the study, by name (``FORMS``)."""
    if table.name == "table5":
        return _wall_clock(table)
    return {
        OURS: _of(table, OURS),
        PAPER: _of(table, PAPER),
        DIFFERENCE: _difference(table, study),
    }


def pairs(section: Section) -> Iterator[tuple[Row, Row | None]]:
    """Our rows of a section, each with the paper's row under it, if there is one."""
    for i, row in enumerate(section.rows):
        if row["source"] == OURS:
            below = section.rows[i + 1] if i + 1 < len(section.rows) else None
            yield row, below if below is not None and below["source"] == PAPER else None


# -------------------------------------------------------------------------------- Tables 2 to 4


def _of(table: Table, source: str) -> Table:
    """The rows of one source, with the paper's sections only; Table 4 has two rows a setting."""
    found = [[r for r in section.rows if r["source"] == source] for section in table.sections]
    columns = [c for c in table.columns if c.key != "source"]
    within = [key for key in table.best_within if key != "source"]
    rows = found[0]
    if table.name == "table4":
        at = [c.key for c in columns].index("tau") + 1
        columns.insert(at, Column("row", "Row", text=True))
        within.append("row")
        names = ("accuracy", "tokens per forward")
        both = zip(*found[:2], strict=True)
        rows = [
            {**row, "row": name} for pair in both for row, name in zip(pair, names, strict=True)
        ]
    return replace(
        table,
        name=f"{table.name}.{source}",
        title=f"{table.title}, {'the paper’s' if source == PAPER else 'ours'}",
        columns=columns,
        sections=[Section(table.title, rows)],
        notes=[paper.CREDIT] if source == PAPER else _about_ours(table),
        best_within=tuple(within),
    )


def _about_ours(table: Table) -> list[str]:
    """The notes of a table that speak of no row of the paper's."""
    return [note for note in table.notes if note not in (RELATIONS, SAME_MODELS, PAIRED)]


def _difference(table: Table, study: Study) -> Table:
    """Ours minus the paper's, cell by cell; scores only where the models are the paper's."""
    same = all(labels.comparable(study, scale) for scale in study.scales)
    keys = [c.key for c in table.columns if not c.text]
    sections = []
    for section in table.sections:
        if section is table.sections[0] and not same:
            continue
        rows = [_minus(ours, theirs, keys) for ours, theirs in pairs(section) if theirs]
        sections.append(Section(f"{section.title}, {MINUS_TITLE}", rows, signed=True))
    tested = _tested(table.sections[-1], keys)
    if tested.rows:
        sections.append(tested)
    alone = f"{table.title}. {sections[0].title}"
    return replace(
        table,
        name=f"{table.name}.{DIFFERENCE}",
        title=f"{table.title}, {MINUS_TITLE}" if len(sections) > 1 else alone,
        best_within=(),
        columns=[replace(c, signed=not c.text) for c in table.columns if c.key != "source"],
        sections=sections,
        notes=[
            MINUS,
            *([] if same else [NO_SCORES]),
            *([TESTS] if tested.rows else []),
            *_about_ours(table),
        ],
    )


def _minus(ours: Row, theirs: Row, keys: list[str]) -> Row:
    return {**ours, **{key: less(ours.get(key), theirs.get(key)) for key in keys}}


def _tested(differences: Section, keys: list[str]) -> Section:
    """p of our differences from AR SFT; no rows where none is known."""
    rows = [
        row for row in differences.rows if any(v is not None for v in row.get("p", {}).values())
    ]
    flat = [row["p"].get(key) for row in rows for key in keys]
    corrected = iter(holm(flat))
    found = [{**row, **{key: next(corrected) for key in keys}, "probability": True} for row in rows]
    return Section("p of our difference from AR SFT (Holm over this part)", found)


def less(value: Any, known: float | None) -> Estimate | Repeated | float | None:
    """A measured value minus a number taken as exact; None where either is missing."""
    if value is None or known is None:
        return None
    if isinstance(value, Repeated):
        return Repeated(value.value - known, value.sd)
    if isinstance(value, Estimate):
        seeds = {seed: each - known for seed, each in value.per_seed.items()}
        return Estimate(value.value - known, value.draws - known, seeds)
    return float(value) - known


# -------------------------------------------------------------------------------------- Table 5


def _wall_clock(table: Table) -> dict[str, Table]:
    """Tokens/s, time and speedup, all of them over transformers' own greedy decoding."""
    columns = [
        *HEAD,
        Column("tokens_per_s", "Tokens/s", spread=True, best="high"),
        Column("seconds", "Time (s)", spread=True, best="low"),
        Column("speedup", "Speedup", decimals=2, spread=True, best="high"),
    ]
    over = (
        "Speedup is over AR (KV cache), which is transformers' own greedy decoding with its "
        "dynamic cache, as in the paper."
    )
    kept = "tokens_per_s", "seconds"
    ours, minus = [], []
    for section in table.sections:
        rows = section.rows
        head = [{c.key: row.get(c.key) for c in HEAD} for row in rows]
        mine = [
            {**h, **{key: row.get(key) for key in kept}, "speedup": row.get("vs_generate")}
            for h, row in zip(head, rows, strict=True)
        ]
        change = [
            {
                **h,
                "speedup": row.get("vs_generate"),
                "paper": row["paper_speedup"],
                "difference": less(row.get("vs_generate"), row["paper_speedup"]),
            }
            for h, row in zip(head, rows, strict=True)
            if row.get("paper_speedup") is not None
        ]
        ours.append(Section(section.title, _grouped(mine)))
        minus.append(Section(section.title, _grouped(change), signed=False))
    printed = paper.table("table5").rename(columns={"method": "model", "time_s": "seconds"})
    theirs = [{str(k): v for k, v in row.items()} for row in printed.to_dict("records")]
    compared = [
        *HEAD,
        Column("speedup", "Speedup", decimals=2, spread=True),
        Column("paper", "Speedup (paper)", decimals=2),
        Column("difference", "Difference", decimals=2, spread=True, signed=True),
    ]

    def form(
        name: str, what: str, columns: list[Column], parts: list[Section], *notes: str
    ) -> Table:
        title = f"{table.title}, {what}"
        return replace(
            table,
            name=f"{table.name}.{name}",
            title=title,
            columns=columns,
            sections=parts,
            notes=[over, *notes],
        )

    whole = [Section(table.title, _grouped(theirs))]
    return {
        OURS: form(OURS, "ours", columns, ours, *table.notes[:2]),
        PAPER: form(PAPER, "the paper’s", columns, whole, paper.CREDIT),
        DIFFERENCE: form(DIFFERENCE, MINUS_TITLE, compared, minus, table.notes[-1]),
    }


def _grouped(rows: list[dict[str, Any]]) -> list[Row]:
    return [{**row, "group": row["model"]} for row in rows]
