"""Labels beside points: each goes where it hides least of what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from mars.analysis.figures import style

Points = NDArray[np.float64]
Label = tuple[str, float, float]
"""A text, and the point (x, y) that it names."""

NEAR = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
SPOTS = (
    *NEAR,
    *((1, 2), (1, -2), (-1, 2), (-1, -2), (0, 2), (0, -2), (0, 3), (0, -3)),
)
"""Where a label may stand, right and up from its point, the best first."""
HIDES, COVERS = 3.0, 1000.0
"""What it costs to lie on a mark, and on another label; to leave the panel costs half of that."""
STEP = 5.0
"""Points from a point to its label; a second and third step up or down are a line's height."""


def name(
    ax: Axes, labels: Iterable[Label], lines: Sequence[Points], colour: str, needed: int = 2
) -> None:
    """Write labels into a panel whose limits are set.

    Args:
        labels: the more important first.
        lines: what is drawn, each of shape (n, 2), in the order in which its points are joined.
        needed: so many are written wherever they hide least; the others where they hide nothing
            close by.
    """
    width, height = _inches(ax)
    scale = 72 * np.array([width, height])
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
    points = [(np.asarray(line, "float64") - low) / (high - low) * scale for line in lines]
    marks = np.concatenate([*points, np.empty((0, 2))])
    joints = np.concatenate([*map(_along, points), np.empty((0, 2))])
    taken: list[Points] = []
    for i, (text, x, y) in enumerate(labels):
        at = (np.array([x, y]) - low) / (high - low) * scale
        size = style.SMALL * np.array([0.6 * len(text), 1.1])
        boxes = [_box(at, spot, size) for spot in (SPOTS if i < needed else NEAR)]
        costs = [
            HIDES * _inside(marks, box, 3.5)
            + 0.5 * _inside(joints, box, 0.5)
            + COVERS * any(_meet(box, other) for other in taken)
            + 0.5 * COVERS * bool((box[0] < -2).any() or (box[1] > scale + 2).any())
            for box in boxes
        ]
        best = int(np.argmin(costs))
        if costs[best] >= (HIDES if i >= needed else COVERS):
            continue
        taken.append(boxes[best])
        far = abs(SPOTS[best][1]) > 1
        ax.annotate(
            text,
            (x, y),
            xytext=tuple(boxes[best].mean(axis=0) - at),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color=colour,
            arrowprops={"arrowstyle": "-", "lw": 0.8, "color": colour, "shrinkB": 2}
            if far
            else None,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            zorder=5,
        )


def _inches(ax: Axes) -> tuple[float, float]:
    """About how large a panel is: its part of the figure, less room for ticks and titles."""
    figure, grid = ax.get_figure(root=True), ax.get_gridspec()
    if not isinstance(figure, Figure) or grid is None:
        return 2.5, 1.8
    width, height = figure.get_size_inches()
    return 0.85 * width / grid.ncols, 0.7 * height / grid.nrows


def _along(line: Points) -> Points:
    """Points on a line, about 3 points of print apart."""
    if len(line) < 2:
        return np.empty((0, 2))
    lengths = np.linalg.norm(np.diff(line, axis=0), axis=1)
    pieces = zip(line, line[1:], lengths, strict=False)
    return np.concatenate([np.linspace(a, b, 2 + int(n / 3)) for a, b, n in pieces])


def _box(at: Points, spot: tuple[int, int], size: Points) -> Points:
    """Lower left and upper right corner of a label, shape (2, 2)."""
    right, up = spot
    more = max(0, abs(up) - 1) * size[1] * np.sign(up)
    middle = at + np.array([right, np.sign(up)]) * (STEP + size / 2) + np.array([0.0, more])
    return np.array([middle - size / 2, middle + size / 2])


def _inside(points: Points, box: Points, margin: float) -> int:
    return int(((points > box[0] - margin) & (points < box[1] + margin)).all(axis=1).sum())


def _meet(one: Points, other: Points) -> bool:
    return bool((one[0] < other[1]).all() and (other[0] < one[1]).all())
