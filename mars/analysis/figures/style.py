"""What the figures share: colours that colour-blind readers can tell apart, labels, saving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mars.analysis import labels
from mars.analysis.render import whole_file
from mars.config import Study

STYLE = Path(__file__).with_name("mars.mplstyle")

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
AMBER, WINE = "#E69F00", "#882255"
INK, GREY, FAINT, BAND = "#1a1a1a", "#6b6b6b", "#b5b5b5", "#e9dfbd"
BLOCK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
CYCLE = (*BLOCK_COLOURS, AMBER, INK, WINE)
"""Of lines in turn, where a plot names no colours: the style file has them too."""
MARKERS = ("o", "s", "^", "D", "v")

Dashes = str | tuple[int, tuple[float, ...]]
"""A line style of matplotlib's."""

COLUMN, WIDE = 3.3, 6.8
"""Widths of a column and of a page in print, inches: figures are drawn at one of them, so that
type on paper is the size that the style says."""
SMALL = 6.5
"""The smallest type, points: for labels inside a panel."""

SEQUENCE = "viridis"
"""Colours of what has an order: evenly spaced for the colour-blind, and on a grey printer too."""


def sequence(count: int) -> list[str]:
    """Colours for ``count`` ordered things, dark to light; the palest end is left out."""
    shades = matplotlib.colormaps[SEQUENCE](np.linspace(0.0, 0.88, max(count, 1)))
    return [to_hex(shade) for shade in shades]


def block_sizes(study: Study) -> list[int]:
    """Block sizes of the study's MARS variants, ascending."""
    return sorted({v.block_size for v in study.variants.values() if v.objective == "mars"})


def size_look(study: Study, size: int) -> tuple[str, str]:
    """Colour and marker of a block size, the same in every figure of a study."""
    return _look(block_sizes(study).index(size))


def look(study: Study, name: str) -> tuple[str, str]:
    """Colour and marker of a MARS variant: its block size's, if it is the first of its kind.

    A further one (of another learning rate, say) has its own; dashes are left to tell variants
    with and without the SFT loss apart.
    """
    made, sizes = study.variants, block_sizes(study)
    further = {
        (rank, made[n].block_size)
        for n in made
        if made[n].objective == "mars" and (rank := labels.rank(study, n))
    }
    rank, size = labels.rank(study, name), made[name].block_size
    return _look(len(sizes) + sorted(further).index((rank, size)) if rank else sizes.index(size))


def _look(place: int) -> tuple[str, str]:
    """Where colours begin again, each has the next marker: colour is never the only difference."""
    many = len(BLOCK_COLOURS)
    return BLOCK_COLOURS[place % many], MARKERS[(place + place // many) % len(MARKERS)]


def handle(study: Study, name: str) -> Line2D:
    """A MARS variant in a legend."""
    colour, marker = look(study, name)
    return Line2D([], [], color=colour, marker=marker, label=f"MARS, {labels.line(study, name)}")


def scale_title(study: Study, scale: str) -> str:
    """A scale, and the paper's that it stands for."""
    at = study.scales[scale].paper
    if at is None or labels.comparable(study, scale):
        return scale
    return f"{scale} (as the paper's {at})"


def panel_title(study: Study, scale: str, benchmark: str) -> str:
    """A panel's scale and benchmark, and the paper's benchmark that it stands for."""
    column = study.evaluation.benchmarks[benchmark].column
    return f"{scale} · {benchmark}" + (f" (for {column})" if column != benchmark else "")


def nothing(ax: Axes, text: str = "no results yet") -> None:
    """Say that a panel has no data, instead of drawing empty axes."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.tick_params(length=0, labelbottom=False, labelleft=False)  # no ticks: panels may share them
    ax.grid(visible=False)


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Positions near ``values``, in their order, at least ``gap`` apart: for direct labels."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = [values[i] for i in order]
    for _ in range(200):
        moved = False
        for i in range(len(placed) - 1):
            lack = gap - (placed[i + 1] - placed[i])
            if lack > 1e-9:
                placed[i] -= lack / 2
                placed[i + 1] += lack / 2
                moved = True
        if not moved:
            break
    out = [0.0] * len(values)
    for i, at in zip(order, placed, strict=True):
        out[i] = at
    return out


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.pdf`` whole, without dates, so that redraws are equal."""
    written = []
    for kind in ("png", "pdf"):
        path = stem.with_name(f"{stem.name}.{kind}")
        metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
        with whole_file(path) as part, matplotlib.rc_context(fname=STYLE):
            figure.savefig(part, format=kind, metadata=metadata)
        written.append(path)
    return written
