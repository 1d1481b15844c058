"""Replayed acceptance: which drafted tokens are accepted is drawn, and forced on every method.

Each position of each response is *easy* or not, by a draw made beforehand. A step that begins at
position p accepts p, then p + 1 if that is easy, and so on. The draws belong to positions, not to
steps, so that every method, whatever it drafts and wherever it cuts, is given the same chances.
What is replayed so is only fit for measuring speed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import BoolTensor

from mars.decoding.mars import MarsDecoder
from mars.decoding.window import Predictions


def easy_rate(tokens_per_forward: float, block_size: int) -> float:
    """The rate a of easy positions at which B drafts yield so many tokens a step on average.

    A step accepts d tokens or more with probability a^(d − 1), so 1 + a + … + a^(B−1) on average;
    that grows with a, from 1 to B, and is solved for by bisection.
    """
    if not 1 <= tokens_per_forward <= block_size:
        raise ValueError(
            f"{tokens_per_forward:g} tokens per forward cannot come of {block_size} drafted: "
            f"ask for 1 to {block_size}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**d for d in range(block_size)) < tokens_per_forward:
            low = middle
        else:
            high = middle
    return high if tokens_per_forward > 1 else 0.0


class Draws:
    """Which positions of which responses are easy.

    Attributes:
        easy: (R, L) bool, of response r and position p; the first position's is never read.
        first: the response that a decoder calls number 0: where a batch of the prompts begins.
    """

    def __init__(
        self,
        tokens_per_forward: float,
        block_size: int,
        responses: int,
        length: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        rate = easy_rate(tokens_per_forward, block_size)
        drawn = np.random.default_rng(seed).random((responses, length)) < rate
        self.easy = torch.from_numpy(drawn).to(device)
        self.first = 0

    def agreement(self, step: Predictions) -> BoolTensor:
        """(N, D) whether prediction d may follow those before it: whether its position is easy."""
        # a row's last draft may reach beyond its response; nothing there is accepted
        place = (step.column - step.prompt).clamp(0, self.easy.shape[1] - 1)
        return self.easy[step.index + self.first, place]  # type: ignore[return-value]


class ReplayedMars(MarsDecoder):
    """MARS in every respect, but for who decides what is accepted."""

    draws: Draws

    def agreement(self, step: Predictions) -> BoolTensor:
        """What the draws say, whatever the model is confident of."""
        return self.draws.agreement(step)


def replaying(draws: Draws) -> type[ReplayedMars]:
    """``ReplayedMars`` with its draws, as ``make_decoder(method=…)`` takes a method."""
    return type("ReplayedMars", (ReplayedMars,), {"draws": draws})
