"""How many tokens to draft: the length with the most accepted tokens for its cost.

A draft of D tokens (1 is plain AR) yields 1 + a₁ + a₁a₂ + … tokens a row, a_d being how often a
row that accepted d tokens accepted one more. It costs a forward of as many columns as the rows
have: D − 1 masks each, and what they accepted last time, which this step must write. Both are
taken as they would be if D were kept for good: a longer draft is also paid for by the step after.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mars.decoding.costs import CostTable

MEMORY = 0.995
"""What a step leaves of the weight of those before it: about 200 steps are remembered."""

PRIOR_RATE, PRIOR_WEIGHT = 0.5, 4.0
"""What is believed of acceptance before anything was seen, and how many observations that is."""

LEAST_GAIN = 0.08
"""A draft must promise so much more than none: a step that drafts does more besides the model's
forward, which the table of costs leaves out (on a CPU 0.15 ms where AR's step takes 1.8 ms), and
rows that end apart from each other share their prefills less."""

THINK_STEPS = 8
"""Every so many steps the best length is worked out anew, and when the number of rows changes."""

PROBE_STEPS = 64
"""Every so many steps the draft is one longer, so that a change of acceptance is noticed."""


class DraftLength:
    """Chooses, from recent acceptance and a table of costs.

    Args:
        costs: of the model on this machine.
        width: B, the most tokens a step may accept.
    """

    def __init__(self, costs: CostTable, width: int) -> None:
        self._costs, self._width = costs, width
        self._offered = np.zeros(width - 1)
        self._taken = np.zeros(width - 1)
        self._steps = self._rows = 0
        self._best = width

    @property
    def pays(self) -> bool:
        """Whether a draft pays, as far as is known: yes, until some rows have had one."""
        return self._best > 1 or self._offered[0] < PRIOR_WEIGHT

    def choose(self, rows: int) -> int:
        """The length of the next draft for ``rows`` rows, in 1 … B."""
        if self._steps % THINK_STEPS == 0 or rows != self._rows:
            rates = self.rates(rows)
            rates[0] *= 1 + LEAST_GAIN
            self._best, self._rows = int(np.argmax(rates)) + 1, rows
        self._steps += 1
        return min(self._best + (self._steps % PROBE_STEPS == 0), self._width)

    def observe(self, limit: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Learn from a step: (N,) what rows might accept, and what they did."""
        depth = np.arange(1, self._width)
        offered = (limit[:, None] > depth) & (counts[:, None] >= depth)
        self._offered = MEMORY * self._offered + offered.sum(axis=0)
        self._taken = MEMORY * self._taken + (offered & (counts[:, None] > depth)).sum(axis=0)

    def acceptance(self) -> NDArray[np.float64]:
        """(B,) the share of rows that accept at least 1, 2, … B tokens, were so many drafted."""
        rate = (self._taken + PRIOR_RATE * PRIOR_WEIGHT) / (self._offered + PRIOR_WEIGHT)
        return np.concatenate([[1.0], rate.cumprod()])

    def rates(self, rows: int) -> NDArray[np.float64]:
        """(B,) accepted tokens a second of drafts of 1, 2, … B tokens."""
        accepted = self.acceptance().cumsum()
        seconds = [
            self._costs.seconds(rows, tokens + masks, masks + 1)
            for masks, tokens in enumerate(accepted)
        ]
        return rows * accepted / np.maximum(seconds, 1e-9)
