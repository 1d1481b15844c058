"""What the figures share: colours that colour-blind readers can tell apart, labels, saving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mars.analysis import labels
from mars.analysis.render import whole_file
from mars.config import Study

STYLE = Path(__file__).with_name("mars.mplstyle")

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#56B4E9"
INK, GREY, FAINT = "#1a1a1a", "#6b6b6b", "#b5b5b5"
BLOCK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
MARKERS = ("o", "s", "^", "D", "v")


def block_sizes(study: Study) -> list[int]:
    """Block sizes of the study's MARS variants, ascending."""
    return sorted({v.block_size for v in study.variants.values() if v.objective == "mars"})


def colour(study: Study, size: int) -> str:
    """The colour of a block size, the same in every figure of a study."""
    return BLOCK_COLOURS[block_sizes(study).index(size) % len(BLOCK_COLOURS)]


def marker(study: Study, size: int) -> str:
    """The marker of a block size, so that colour is never the only difference."""
    return MARKERS[block_sizes(study).index(size) % len(MARKERS)]


def scale_title(study: Study, scale: str) -> str:
    """A scale, and the paper's that it stands for."""
    at = study.scales[scale].paper
    if at is None or labels.comparable(study, scale):
        return scale
    return f"{scale} (as the paper's {at})"


def nothing(ax: Axes, text: str = "no results yet") -> None:
    """Say that a panel has no data, instead of drawing empty axes."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.set_xticks([])
    ax.set_yticks([])


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
