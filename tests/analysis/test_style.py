"""Figures as printed: their width, their type, and colours that all readers can tell apart."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from mars.analysis.figures import FIGURES, style, wall_clock
from mars.analysis.speed import OPPONENTS

# How colours look without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "deuteranopia": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "tritanopia": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ @ np.ones(3)


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as it is seen."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(seen @ linear, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(
    ("colours", "least"),
    [
        (style.BLOCK_COLOURS, 15),
        (style.sequence(7), 10),
        (style.CYCLE, 15),
        ([wall_clock.LINES[method][0] for method in OPPONENTS], 15),
    ],
)
def test_colours_stay_apart_for_the_colour_blind(colours, least, seen):
    looks = [lab(colour, SEEN[seen]) for colour in colours]
    nearest = min(np.linalg.norm(a - b) for a, b in combinations(looks, 2))
    assert nearest > least  # 2 is the least that is noticed side by side


def test_plots_of_ones_own_have_these_colours_in_turn():
    with matplotlib.rc_context(fname=style.STYLE):
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()
    assert list(map(to_rgb, cycle["color"])) == list(map(to_rgb, style.CYCLE))


def test_what_has_an_order_gets_lighter():
    lightness = [lab(colour, SEEN["all cones"])[0] for colour in style.sequence(7)]
    assert np.all(np.diff(lightness) > 5)


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_is_as_wide_as_a_column_or_a_page_and_its_type_is_legible(study, results, name):
    with matplotlib.rc_context(fname=style.STYLE):
        made = FIGURES[name].figure(study, results)
        texts = [text for text in made.findobj(Text) if text.get_text() and text.get_visible()]
        small = [(t.get_text(), t.get_fontsize()) for t in texts if t.get_fontsize() < style.SMALL]
    assert made.get_figwidth() in (style.COLUMN, style.WIDE)
    assert made.get_figheight() < 9.5  # a page
    assert len(texts) > 5
    assert not small
