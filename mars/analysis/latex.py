"""A table as LaTeX: booktabs, the best number of each group in bold, intervals where asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mars.analysis.render import ABSENT, Column, Row, Section, Table, show
from mars.analysis.statistics import Estimate, Repeated

_WRITTEN = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"${sign}$" for sign in "<>|"},  # upside down in LaTeX's old text encoding
        "τ": r"$\tau$",
        "−": "$-$",
        "–": "--",
        "÷": r"$\div$",
        "×": r"$\times$",
        "±": r"$\pm$",
        "·": r"$\cdot$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "Σ": r"$\Sigma$",
        "→": r"$\to$",
        "‘": "`",
        "’": "'",
        "“": "``",
        "”": "''",
    }
)


def escape(text: str) -> str:
    """Plain text as LaTeX that prints it."""
    return text.translate(_WRITTEN)


def latex(table: Table, intervals: bool = False) -> str:
    """A table as a floating ``table`` environment; a document needs ``booktabs`` for it.

    Args:
        table: any table of a study. The best of a column is bold, among the rows that are alike
            in ``table.best_within``, where the column says which end is best.
        intervals: whether estimates carry their 95 % interval.
    """
    columns = [replace(c, show_interval=intervals and c.estimate) for c in table.columns]
    long = any(c.width for c in columns)
    lines = [
        *(f"% {note}" for note in ("Needs \\usepackage{booktabs}.", *table.notes)),
        r"\begin{table}[t]",
        r"  \centering" + (r"\footnotesize\setlength{\tabcolsep}{3pt}" if long else r"\small"),
        rf"  \caption{{{escape(_caption(table.title))}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{''.join(map(_kind, columns))}}}",
        r"    \toprule",
        _line([_heading(c) for c in columns]),
        r"    \midrule",
    ]
    for i, section in enumerate(table.sections):
        if len(table.sections) > 1:
            lines += [r"    \midrule"] if i else []
            words = rf"\multicolumn{{{len(columns)}}}{{l}}{{\emph{{{escape(section.title)}}}}}"
            lines.append(_line([words]))
        lines += _rows(table, section, columns)
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _caption(title: str) -> str:
    """A title without the number that it has in the paper: the document numbers its own tables."""
    text = re.sub(r"^Table \d+: ", "", title)
    return text[:1].upper() + text[1:]


def _kind(column: Column) -> str:
    if column.width:
        return rf"p{{{column.width:g}\linewidth}}"
    return "l" if column.text else "r"


def _heading(column: Column) -> str:
    title = escape(column.title)
    return title if column.text else rf"\multicolumn{{1}}{{c}}{{{title}}}"


def _line(cells: Sequence[str]) -> str:
    line = " & ".join(cells)
    # a row that starts so would be read as an argument of the line break before it
    return f"    {'{}' if line.startswith(('[', '*')) else ''}{line} \\\\"


def _rows(table: Table, section: Section, columns: Sequence[Column]) -> list[str]:
    best = _best(table, section)
    lines = []
    for i, row in enumerate(section.rows):
        if i and row.get("group") != section.rows[i - 1].get("group"):
            lines.append(r"    \addlinespace")
        cells = []
        for column in columns:
            text = escape(show(column, row, section.signed))
            if column.width:  # in a group, so that it leaves the row's own line break alone
                text = rf"{{\raggedright {text}\par}}"
            cells.append(rf"\textbf{{{text}}}" if (i, column.key) in best else text)
        lines.append(_line(cells))
    return lines


def _best(table: Table, section: Section) -> set[tuple[int, str]]:
    """(row, column) of the cells that print as the best among at least two rows of their group."""
    found: set[tuple[int, str]] = set()
    if section.signed or not table.best_within:
        return found
    for column in (c for c in table.columns if c.best):
        rivals: dict[tuple[Any, ...], dict[int, float]] = {}
        for i, row in enumerate(section.rows):
            if (value := _printed(column, row)) is not None:
                among = tuple(row.get(key) for key in table.best_within)
                rivals.setdefault(among, {})[i] = value
        for values in rivals.values():
            top = (max if column.best == "high" else min)(values.values())
            if len(values) > 1:
                found |= {(i, column.key) for i, value in values.items() if value == top}
    return found


def _printed(column: Column, row: Row) -> float | None:
    """A cell's number as rounded for print: what reads the same is equally good."""
    value = row.get(column.key)
    if isinstance(value, Estimate | Repeated):
        value = value.value
    if not isinstance(value, int | float) or show(column, row) == ABSENT:
        return None
    return round(float(value), row.get("decimals", column.decimals))
