"""Every figure of a study, by name: one file each, and one line in the registry.

A figure's module has ``TITLE``, ``ALT`` (what it shows, for those who cannot see it), ``data``
(the numbers it draws, as a frame), ``figure`` and ``caption``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from mars.analysis.figures import (
    accepted_counts,
    arrivals,
    frontier,
    loss_curves,
    reliability,
    score_tau,
    signal_fraction,
    spans,
    style,
    tokens_per_forward,
    wall_clock,
)
from mars.config import Study


class Drawing(Protocol):
    """What a figure's module offers."""

    TITLE: str
    ALT: str

    def data(self, study: Study, results: Path) -> pd.DataFrame: ...

    def figure(self, study: Study, results: Path) -> Figure: ...

    def caption(self, study: Study) -> str: ...


FIGURES: dict[str, Drawing] = {
    "frontier": frontier,
    "score_tau": score_tau,
    "tokens_per_forward": tokens_per_forward,
    "accepted_counts": accepted_counts,
    "spans": spans,
    "reliability": reliability,
    "signal_fraction": signal_fraction,
    "wall_clock": wall_clock,
    "arrivals": arrivals,
    "loss_curves": loss_curves,
}
"""In the order of the report."""


def find(name: str) -> Drawing:
    """The module of a figure."""
    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}; choose from {', '.join(FIGURES)}")
    return FIGURES[name]


def data(name: str, study: Study, results: Path) -> pd.DataFrame:
    """The numbers that a figure draws."""
    return find(name).data(study, results)


def draw(name: str, study: Study, results: Path, out_stem: Path) -> list[Path]:
    """Draw a figure to ``<out_stem>.png`` and ``<out_stem>.pdf`` and return both paths."""
    drawing = find(name)
    with matplotlib.rc_context(fname=style.STYLE):
        made = drawing.figure(study, results)
    return style.save(made, out_stem)


def caption(name: str, study: Study) -> str:
    """A figure's caption in plain text, for the report and for Snakemake's."""
    return find(name).caption(study)
