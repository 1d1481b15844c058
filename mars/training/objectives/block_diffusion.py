"""Block diffusion (BD3LM): masked tokens of a noised block, weighted 1/t (docs/method.md)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mars import streams
from mars.data import Encoded
from mars.streams import Layout
from mars.training.objectives.base import Key, Objective, Setup

EPSILON = 1e-3
"""The smallest masking rate t."""


class BlockDiffusion(Objective):
    """``alignment: stream`` (a token is read from the column before it) or ``own``."""

    name = "block_diffusion"
    predicate = streams.BLOCK_DIFFUSION
    wants_ar = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.block_size < 2:
            raise ValueError(f"block_size is {setup.block_size}: block_diffusion needs at least 2")
        if setup.alignment not in ("stream", "own"):
            raise ValueError(
                f"alignment {setup.alignment!r}: block_diffusion knows 'stream' and 'own'"
            )

    def row(self, example: Encoded, key: Key) -> Layout:
        """``[clean | noised response]``, each response padded to whole blocks."""
        s = self.setup
        example = whole_blocks(example, s.block_size, s.end_id)
        noise, rate = draw_noise(s.seed, key, example.turn, s.block_size)
        return streams.block_diffusion_layout(
            example.ids, example.turn, s.block_size, s.mask_id, noise, rate, s.alignment
        )

    def padded(self, length: int) -> int:
        """Up to B−1 more for the last response; earlier ones are counted when they are seen."""
        return length + self.setup.block_size - 1


def whole_blocks(example: Encoded, block_size: int, end_id: int) -> Encoded:
    """Every response padded with end-of-turn to whole blocks counted from its own start.

    The last one, where it was cut, loses its broken block instead (if another is left).
    """
    pieces: list[tuple[Tensor, Tensor]] = []
    turns = example.turn
    edges = [0, *(torch.nonzero(turns[1:] != turns[:-1]).flatten() + 1).tolist(), len(turns)]
    for start, stop in pairwise(edges):
        ids, turn = example.ids[start:stop], turns[start:stop]
        over = (stop - start) % block_size
        if int(turn[0]) >= 0 and over:
            if example.ended or stop < len(turns):
                more = block_size - over
                ids = torch.cat([ids, torch.full((more,), end_id)])
                turn = torch.cat([turn, turn[:1].repeat(more)])
            elif stop - start > over:
                ids, turn = ids[:-over], turn[:-over]
        pieces.append((ids, turn))
    turn = torch.cat([turn for _, turn in pieces])
    return Encoded(torch.cat([ids for ids, _ in pieces]), turn >= 0, turn, example.ended)


def draw_noise(seed: int, key: Key, turn: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """(noise, rate): a uniform draw per token, and t ~ U(ε, 1) per block, spread over its tokens.

    Keyed by (seed, epoch, example), so independent of batch and order.
    """
    generator = np.random.default_rng([seed, *key])
    turns = int(turn.max()) + 1
    block = streams.block_ids(turn, block_size, [0] * turns)
    noise = torch.from_numpy(generator.random(len(turn)))
    rates = torch.from_numpy(generator.uniform(EPSILON, 1.0, int(block[-1]) + 1))
    return noise, rates[block]
