"""MARS: the masked stream beside the clean one, ``L_mask + ar_weight · L_AR`` (docs/method.md)."""

from __future__ import annotations

import torch

from mars import streams
from mars.data import Encoded
from mars.streams import Layout
from mars.training.objectives.base import Key, Objective, Setup, extend, shorten


class Mars(Objective):
    """``alignment: decoder`` (a random phase, B−1 masks a block) or ``stream`` (as released)."""

    name = "mars"
    predicate = streams.MARS

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.block_size < 2:
            raise ValueError(f"block_size is {setup.block_size}: mars needs at least 2")
        if setup.alignment not in ("decoder", "stream"):
            raise ValueError(f"alignment {setup.alignment!r}: mars knows 'decoder' and 'stream'")
        self.wants_ar = setup.ar_weight > 0

    def row(self, example: Encoded, key: Key) -> Layout:
        """``[clean | masked]``, the masked stream trimmed."""
        s = self.setup
        if s.alignment == "stream":
            example = whole_blocks_from_start(example, s.block_size, s.end_id)
            return streams.stream_layout(example.ids, example.turn, s.block_size, s.mask_id)
        turns = int(example.turn.max()) + 1
        phases = [streams.block_phase(s.seed, *key, turn, s.block_size) for turn in range(turns)]
        return streams.mars_layout(example.ids, example.turn, s.block_size, phases, s.mask_id)

    def padded(self, length: int) -> int:
        """Under ``stream`` up to a whole block."""
        size = self.setup.block_size
        return -(-length // size) * size if self.setup.alignment == "stream" else length


def whole_blocks_from_start(example: Encoded, block_size: int, end_id: int) -> Encoded:
    """As released: the end is padded with end-of-turn to a whole block from the sequence start.

    A response that was cut does not end here, so it is not told to: its broken last block goes.
    """
    over = len(example) % block_size
    if not over:
        return example
    if example.ended:
        return extend(example, block_size - over, end_id)
    if torch.any(example.response[: len(example) - over]):
        return shorten(example, len(example) - over)
    return example
