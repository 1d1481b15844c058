"""The skeleton of a page: one self-contained HTML file, styles and scripts inside it.

Without scripts everything can still be read: they sort tables and move the slider, no more.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPTS = ("sort.js", "examples.js", "contents.js")


@dataclass(frozen=True)
class Part:
    """A section of a page.

    Attributes:
        anchor: its id, unique on the page.
        title: its heading.
        body: HTML; a section without any is left out.
        entries: (anchor, title) of what the contents list under it.
    """

    anchor: str
    title: str
    body: str
    entries: tuple[tuple[str, str], ...] = ()


def page(title: str, lead: str, parts: Sequence[Part], footer: str) -> str:
    """A whole HTML document.

    Args:
        title: plain text, as is ``lead``, the line under it.
        parts: its sections, in order.
        footer: HTML.
    """
    shown = [part for part in parts if part.body]
    body = "\n".join(_section(part) for part in shown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
{_file("report.css")}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{html.escape(title)}</h1>
<p class="lead">{html.escape(lead)}</p>
</header>
<div class="columns">
{_contents(shown)}
<main id="content">
{body}
</main>
</div>
<footer>{footer}</footer>
<script>
{"".join(_file(name) for name in SCRIPTS)}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _section(part: Part) -> str:
    return (
        f'<section aria-labelledby="{part.anchor}">\n'
        f'<h2 id="{part.anchor}">{html.escape(part.title)}</h2>\n{part.body}\n</section>'
    )


def _contents(parts: Sequence[Part]) -> str:
    items = []
    for part in parts:
        under = "".join(f"<li>{_link(*entry)}</li>" for entry in part.entries)
        items.append(
            f"<li>{_link(part.anchor, part.title)}{f'<ul>{under}</ul>' if under else ''}</li>"
        )
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _link(anchor: str, title: str) -> str:
    return f'<a href="#{anchor}">{html.escape(title)}</a>'


def terms(rows: dict[str, object]) -> str:
    """Names and values as a definition list; what is not known shows as –."""
    items = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(_shown(value))}</dd>"
        for name, value in rows.items()
    )
    return f"<dl>{items}</dl>"


def _shown(value: object) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
