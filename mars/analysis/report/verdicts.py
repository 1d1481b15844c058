"""The paper's claims at the top of a report: a verdict for each, and the numbers behind it."""

from __future__ import annotations

import html
from dataclasses import replace

from mars.analysis.render import Column, Row, Table, show

KINDS = {
    "reproduced": "yes",
    "holds": "yes",
    "not reproduced": "no",
    "fails": "no",
    "inconclusive": "open",
    "open": "open",
}
"""What a verdict's mark looks like, beside its words; those not measured have none."""

CELLS = ("sentence", "verdict", "ours", "needed", "paper")
"""Of the claims table, what is shown first; the whole of it can be opened below."""


def verdicts(table: Table) -> str:
    """The claims table as HTML: a row a claim, which on a phone is a card, and the rest folded."""
    first, *rest = table.sections
    columns = {column.key: column for column in table.columns}
    heads = "".join(
        f'<th scope="col" role="columnheader">{html.escape(columns[key].title)}</th>'
        for key in CELLS
    )
    rows = "".join(_row(row, columns) for row in first.rows)
    parts = [
        f"<p>{html.escape(table.notes[0])}</p>" if table.notes else "",
        '<div class="scroll claims" tabindex="0" role="region" '
        f'aria-label="{html.escape(table.title)}"><table role="table">'
        f'<caption class="hidden">{html.escape(table.title)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table></div>',
    ]
    folded = replace(table, sections=rest, notes=table.notes[1:])
    if rest:
        parts.append(
            "<details><summary>What each verdict rests on, and what the words mean</summary>"
            f"{folded.html()}</details>"
        )
    return "\n".join(parts)


def _row(row: Row, columns: dict[str, Column]) -> str:
    cells = "".join(_cell(key, row, columns[key]) for key in CELLS)
    return f'<tr role="row">{cells}</tr>'


def _cell(key: str, row: Row, column: Column) -> str:
    text = html.escape(show(column, row))
    if key == "sentence":
        where = html.escape(str(row["where"]))
        return f'<th scope="row" role="rowheader">{text} <span class="where">{where}</span></th>'
    if key == "verdict":
        text = f'<span class="verdict {KINDS.get(str(row[key]), "")}">{text}</span>'
    if key == "ours":
        text = f'{text} <span class="where">{html.escape(str(row["what"]))}</span>'
    return f'<td role="cell" data-label="{html.escape(column.title)}">{text}</td>'
