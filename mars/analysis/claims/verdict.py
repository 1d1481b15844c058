"""From numbers with intervals to verdicts.

A condition *holds* when the whole 95 % interval of its number is within the bound, *fails* when the
whole interval is beyond it, and is open otherwise. A claim is reproduced when all its conditions
hold. As each would have to hold by mistake, a claim whose truth is beyond a bound is called
reproduced no more often than one condition's interval misses the truth, however many conditions it
has. It takes only one failing condition to refute a claim, and many have many chances to, so for
that the intervals are widened (Bonferroni).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mars.analysis.statistics import LEVEL, Estimate, student

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]
REPRODUCED: Verdict = "reproduced"
REFUTED: Verdict = "not reproduced"
OPEN: Verdict = "inconclusive"
UNMEASURED: Verdict = "not measured"
VERDICTS = (REPRODUCED, REFUTED, OPEN, UNMEASURED)


def exact(value: float) -> Estimate:
    """A number without uncertainty: as printed."""
    return Estimate(value, np.array([value]))


def between(low: float, high: float) -> Estimate:
    """A number of which only a range is given, which then is its interval."""
    return Estimate((low + high) / 2, np.repeat([low, high], 1000))


def repeated_ratio(logarithms: Sequence[float]) -> Estimate | None:
    """A ratio from the logarithms of several repeats: Student's interval of their mean.

    One repeat gives no interval, none gives no number.
    """
    known = np.asarray([x for x in logarithms if np.isfinite(x)], dtype=float)
    if not known.size:
        return None
    centre = float(known.mean())
    if known.size == 1:
        return Estimate(float(np.exp(centre)))
    error = float(known.std(ddof=1)) / np.sqrt(known.size)
    return Estimate(float(np.exp(centre)), np.exp(centre + error * student(known.size - 1)))


OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Bound:
    """What a number must be, e.g. ``> -2``."""

    relation: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Bound:
        """From ``"> -2"``; ValueError where that is none."""
        relation, _, value = text.partition(" ")
        if relation not in OPERATORS:
            raise ValueError(f"{text!r}: a bound is one of {' '.join(OPERATORS)} and a number")
        return cls(relation, float(value))

    def __str__(self) -> str:
        shown = {">=": "≥", "<=": "≤"}.get(self.relation, self.relation)
        return f"{shown} {self.value:g}".replace("-", "−")

    def holds(self, value: float) -> bool:
        """Whether a value is within it."""
        return OPERATORS[self.relation](value, self.value)


def of_number(number: Estimate | None, bound: Bound, among: int = 1) -> Verdict:
    """The verdict of one condition of ``among`` that are judged together."""
    if number is None:
        return UNMEASURED
    interval, wide = number.interval, number.bounds(1 - (1 - LEVEL) / among)
    if interval is None or wide is None:
        return OPEN
    if all(map(bound.holds, interval)):
        return REPRODUCED
    return OPEN if any(map(bound.holds, wide)) else REFUTED


def of_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a claim from those of its conditions; without any it was not measured."""
    if REFUTED in verdicts:
        return REFUTED
    if UNMEASURED in verdicts or not verdicts:
        return UNMEASURED
    return OPEN if OPEN in verdicts else REPRODUCED
