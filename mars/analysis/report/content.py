"""Tables and figures of a report."""

from __future__ import annotations

import base64
import html
import struct
from pathlib import Path

from mars.analysis.figures import FIGURES
from mars.analysis.parts import applies
from mars.analysis.report.page import Part
from mars.analysis.report.verdicts import verdicts
from mars.analysis.tables import TABLES, build
from mars.config import Study

FIRST = ("claims", "glance")
"""Tables that stand before all others, in sections of their own."""

SHOWN = 128
"""Pixels of the page to an inch of a figure on paper."""


def tables(study: Study, results: Path) -> Part:
    """Every table of a study but those that stand first."""
    names = [name for name in TABLES if applies(study, name) and name not in FIRST]
    made = {name: build(name, study, results) for name in names}
    body = []
    for name, table in made.items():
        body.append(f'<h3 id="table-{name}">{html.escape(table.title)}</h3>')
        if table.empty:
            body.append("<p>No results for this table yet.</p>")
        body.append(table.html())
    entries = tuple((f"table-{name}", _short(table.title)) for name, table in made.items())
    return Part("tables", "Tables", "\n".join(body), entries)


def first(name: str, anchor: str, title: str, study: Study, results: Path) -> Part:
    """A table as a section of its own; without a body where the registry has no such table."""
    if name not in TABLES or not applies(study, name):
        return Part(anchor, title, "")
    table = build(name, study, results)
    shown = verdicts(table) if name == "claims" and not table.empty else table.html()
    nothing = "<p>No results for this table yet.</p>" if table.empty else ""
    body = f'<div id="table-{name}">{nothing}{shown}</div>'
    return Part(anchor, title, body)


def figures(study: Study, folder: Path) -> Part:
    """Every figure of a study, with its caption; those that were not drawn are named."""
    names = [name for name in FIGURES if applies(study, name)]
    body = [_figure(name, study, folder) for name in names]
    entries = tuple((f"figure-{name}", _short(FIGURES[name].TITLE)) for name in names)
    return Part("figures", "Figures", "\n".join(body), entries)


def _figure(name: str, study: Study, folder: Path) -> str:
    drawing = FIGURES[name]
    title = f'<h3 id="figure-{name}">{html.escape(drawing.TITLE)}</h3>'
    path = folder / f"{name}.png"
    if not path.exists():
        return f"{title}<p>This figure was not drawn: {html.escape(path.name)} is missing.</p>"
    content = path.read_bytes()
    image = base64.b64encode(content).decode("ascii")
    return (
        f'{title}<figure><div class="plot" tabindex="0" role="region" '
        f'aria-label="{html.escape(drawing.TITLE)}">'
        f'<img alt="{html.escape(drawing.ALT)}"{size(content)} '
        f'src="data:image/png;base64,{image}"></div>'
        f"<figcaption>{html.escape(drawing.caption(study))}</figcaption></figure>"
    )


def size(png: bytes) -> str:
    """The size at which a PNG is shown, as attributes: its letters are as large as any other's."""
    if png[12:16] != b"IHDR":
        return ""
    width, height = struct.unpack(">II", png[16:24])
    scale = SHOWN / _per_inch(png)
    wide, high = round(width * scale), round(height * scale)
    return f' width="{wide}" height="{high}" style="--wide:{wide}px"'


def _per_inch(png: bytes) -> float:
    """Pixels to an inch of paper, from the chunk that says so."""
    at = png.find(b"pHYs", 0, png.find(b"IDAT"))
    return struct.unpack(">I", png[at + 4 : at + 8])[0] * 0.0254 if at > 0 else SHOWN


def _short(title: str) -> str:
    """A title as the contents have it: of a long one of a numbered table, the number."""
    head, colon, rest = title.partition(": ")
    return head if colon and head.startswith("Table ") and len(rest) > 30 else title
