"""The report: one self-contained, accessible HTML file with everything that a study found."""

from __future__ import annotations

import html
from pathlib import Path

from mars.analysis import paper
from mars.analysis.render import write_text
from mars.analysis.report import content
from mars.analysis.report.about import about, gaps, lead
from mars.analysis.report.cite import cite
from mars.analysis.report.examples import examples
from mars.analysis.report.page import Part, page
from mars.analysis.report.run import configuration, run
from mars.config import Study

PAPER_URL = f"https://arxiv.org/abs/{paper.facts()['source']['arxiv']}"
FOOTER = (
    f'<p>The paper: <a href="{PAPER_URL}">{html.escape(paper.CREDIT)}</a>. Everything labelled '
    "‘paper’ is its authors’ work; everything else on this page was measured by this run.</p>"
)


def write_report(study: Study, results: Path, figures: Path, out: Path) -> Path:
    """Write the report of a study to ``out``, with images, styles and numbers inside it.

    Args:
        results: ``results/<study>``.
        figures: where the figures were drawn, ``<name>.png`` each; absent ones are named.
        out: the HTML file.
    """
    found = [
        content.first("claims", "claims", "The paper’s claims", study, results),
        content.first("glance", "glance", "At a glance", study, results),
        Part("missing", "What is missing", gaps(study, results)),
        Part("about", "How to read this", about(study)),
        content.figures(study, figures),
        content.tables(study, results),
        Part("examples", "Examples", examples(study, results)),
        Part("run", "This run", run(study, results)),
        Part("configuration", "Configuration", configuration(study)),
        Part("cite", "How to cite", cite()),
    ]
    title = f"MARS, reproduced: study “{study.study}”"
    return write_text(out, page(title, lead(study), found, FOOTER))
