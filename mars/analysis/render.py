"""One table, three forms: CSV for programs, Markdown for people, HTML for the report."""

from __future__ import annotations

import csv
import html
import io
import math
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mars.analysis.statistics import Estimate, Repeated

ABSENT = "–"
"""How a missing cell shows in Markdown and HTML; in CSV it is empty. It is never 0."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """A number read in words (a duration, say): ``value`` is what sorts, and the CSV's."""

    value: float
    text: str


@dataclass(frozen=True)
class Column:
    """A column; ``estimate`` columns hold :class:`Estimate` and have bounds in the CSV.

    ``spread`` columns hold :class:`Repeated`, and the CSV has its deviation beside it. ``best``
    says which end of a column LaTeX prints in bold, if any; ``width`` is that of a column of long
    text there, as a share of the line.
    """

    key: str
    title: str
    decimals: int = 1
    estimate: bool = False
    show_interval: bool = False
    text: bool = False
    signed: bool = False
    spread: bool = False
    best: Literal["", "high", "low"] = ""
    width: float | None = None


@dataclass
class Section:
    """Rows under one heading; ``signed`` numbers carry their sign, ``decimals`` overrides."""

    title: str
    rows: Sequence[Row] = field(default_factory=list)
    signed: bool = False


@dataclass
class Table:
    """A table of a study, ready to be written.

    ``best_within`` are keys of rows: the best of a column is sought among rows alike in them, and
    nowhere if there are none. Rows alike in the key ``group`` stand together in LaTeX.
    """

    name: str
    title: str
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    seeds: int = 1
    best_within: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the study has no row for it."""
        return not any(section.rows for section in self.sections)

    # ------------------------------------------------------------------------------------ CSV

    def csv(self) -> str:
        """All sections as one CSV, with the bounds of each interval and no formatting."""
        header = ["section"] if len(self.sections) > 1 else []
        for column in self.columns:
            header.append(column.title)
            if column.estimate:
                header += [f"{column.title}_low", f"{column.title}_high"]
                header += [f"{column.title}_seed_sd"] if self.seeds > 1 else []
            header += [f"{column.title}_sd"] if column.spread else []
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        for section in self.sections:
            for row in section.rows:
                cells = [section.title] if len(self.sections) > 1 else []
                for column in self.columns:
                    cells += self._plain(column, row.get(column.key))
                writer.writerow(cells)
        return out.getvalue()

    def _plain(self, column: Column, value: Any) -> list[str]:
        if column.spread:
            known = isinstance(value, Repeated)
            return [_exact(value.value), _exact(value.sd)] if known else [_exact(value), ""]
        if not column.estimate:
            return [_exact(value)]
        if not isinstance(value, Estimate):
            return [_exact(value), "", "", *([""] if self.seeds > 1 else [])]
        low, high = value.interval or (None, None)
        spread = [_exact(value.seed_sd)] if self.seeds > 1 else []
        return [_exact(value.value), _exact(low), _exact(high), *spread]

    # ------------------------------------------------------------------------------- Markdown

    def markdown(self) -> str:
        """The table as Markdown, numbers as the paper prints them."""
        lines = [f"# {self.title}", ""]
        for section in self.sections:
            if len(self.sections) > 1:
                lines += [f"## {section.title}", ""]
            lines.append("| " + " | ".join(c.title for c in self.columns) + " |")
            rule = ["---" if c.text else "---:" for c in self.columns]
            lines.append("| " + " | ".join(rule) + " |")
            for row in section.rows:
                cells = [show(c, row, section.signed).replace("|", "\\|") for c in self.columns]
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"

    # ----------------------------------------------------------------------------------- HTML

    def html(self) -> str:
        """The table as an accessible HTML fragment, one scrolling box per section."""
        parts = []
        for section in self.sections:
            several = len(self.sections) > 1
            caption, shown = (section.title, "shown") if several else (self.title, "hidden")
            parts.append(
                '<div class="scroll" tabindex="0" role="region" '
                f'aria-label="{html.escape(self.title)}: {html.escape(caption)}"><table>'
                f'<caption class="{shown}">{html.escape(caption)}</caption>'
            )
            heads = "".join(
                f'<th scope="col"{"" if c.text else _NUMBER}>{html.escape(c.title)}</th>'
                for c in self.columns
            )
            parts.append(f"<thead><tr>{heads}</tr></thead><tbody>")
            for row in section.rows:
                kind = ' class="paper"' if row.get("source") == "paper" else ""
                cells = []
                for i, c in enumerate(self.columns):
                    text = html.escape(show(c, row, section.signed))
                    sort = _sort(row.get(c.key))
                    if i == self._heading:
                        cells.append(f'<th scope="row"{sort}>{text}</th>')
                    else:
                        cells.append(f"<td{'' if c.text else _NUMBER}{sort}>{text}</td>")
                parts.append(f"<tr{kind}>{''.join(cells)}</tr>")
            parts.append("</tbody></table></div>")
        if self.notes:
            items = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
            parts.append(f'<ul class="notes">{items}</ul>')
        return "\n".join(parts)

    @property
    def _heading(self) -> int:
        """The column whose cell names its row: the model where there is one, else the first."""
        keys = [c.key for c in self.columns]
        return keys.index("model") if "model" in keys else 0


_NUMBER = ' class="number"'


def show(column: Column, row: Row, signed: bool = False) -> str:
    """One cell as people read it."""
    value = row.get(column.key)
    decimals = row.get("decimals", column.decimals)
    signed = signed or column.signed
    if isinstance(value, Estimate):
        text = _number(value.value, decimals, signed)
        if column.show_interval and (bounds := value.interval):
            low, high = (_number(b, decimals, signed) for b in bounds)
            text += f" [{low}, {high}]"
        if column.show_interval and value.seed_sd is not None:
            text += f" (seeds ± {value.seed_sd:.{decimals}f})"
        return text
    if isinstance(value, Repeated):
        text = _number(value.value, decimals, signed)
        return text if value.sd is None else f"{text} ± {value.sd:.{decimals}f}"
    if isinstance(value, Told):
        return value.text
    if value is None or is_absent(value):
        return ABSENT
    if isinstance(value, bool | str):
        return str(value)
    if column.text:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
    if row.get("probability"):
        return f"{value:.3f}" if value >= 0.001 else "< 0.001"
    return _number(float(value), decimals, column.signed or (signed and column.estimate))


def _sort(value: Any) -> str:
    """What a cell is sorted by, as an attribute: its number, where it has one."""
    if isinstance(value, Estimate | Repeated | Told):
        value = value.value
    known = isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
    return f' data-sort="{value:.9g}"' if known else ""


def is_absent(value: Any) -> bool:
    """Whether a cell has no value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _number(value: float, decimals: int, signed: bool) -> str:
    if math.isnan(value):
        return ABSENT
    text = f"{round(value, decimals) + 0.0:{'+' if signed else ''}.{decimals}f}"
    return text.replace("-", "−")


def _exact(value: Any) -> str:
    if isinstance(value, Told):
        value = value.value
    if is_absent(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_text(path: Path, text: str) -> Path:
    """Write a file whole: under a temporary name first, then renamed.

    Raises:
        OSError: it cannot be written; the error names it, and nothing is left beside it.
    """
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside a file, renamed to it where what writes it succeeds.

    The system names no file when a write fails (a full disk), so the error raised here does.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()
