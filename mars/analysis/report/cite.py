"""How to cite: the suite from its CITATION.cff, and the paper that the file refers to."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import yaml

from mars.analysis import paper

FILE = Path(__file__).parents[3] / "CITATION.cff"
"""At the root of a checkout; an installed package has none."""


def cite(file: Path = FILE) -> str:
    """BibTeX entries of the suite and the paper, as HTML."""
    arxiv = str(paper.facts()["source"]["arxiv"])
    found = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    about = [r for r in found.get("references", []) if arxiv in str(r.get("identifiers"))]
    theirs = {
        "title": str(about[0]["title"]) if about else "MARS",
        "author": " and ".join(
            _people(about[0]) if about else map(str, paper.facts()["source"]["authors"])
        ),
        "year": f"20{arxiv[:2]}",
        "eprint": arxiv,
        "archivePrefix": "arXiv",
    }
    entries = [_bibtex("article", "mars", theirs)]
    if found:
        ours = {
            "title": str(found["title"]),
            "author": " and ".join(_people(found)),
            "version": str(found["version"]),
        }
        entries.insert(0, _bibtex("software", "mars-reproduced", ours))
    text = html.escape("\n\n".join(entries))
    return (
        "<p>Whoever uses numbers of this page cites the suite that made them; whoever uses the "
        "method or the rows marked ‘paper’ cites the paper.</p>"
        f'<pre tabindex="0">{text}</pre>'
    )


def _people(work: dict[str, Any]) -> list[str]:
    """Authors as BibTeX wants them; a group's name is kept whole by braces."""
    return [
        f"{a['family-names']}, {a['given-names']}" if "family-names" in a else f"{{{a['name']}}}"
        for a in work["authors"]
    ]


def _bibtex(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}"
