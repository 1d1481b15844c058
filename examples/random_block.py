"""MARS with a block size of its own for every conversation: B ~ U{2 … block_size}.

With one B, a token at offset o of a block is always predicted through o masks, o = 0 … B − 1, each
offset as often as any other. With random B near offsets are seen more often than far ones, as they
are when decoding: a far prediction is only of use where all before it were kept.
"""

from __future__ import annotations

import numpy as np

from mars import streams
from mars.data import Encoded
from mars.streams import Layout
from mars.training.objectives import Setup
from mars.training.objectives.base import Key
from mars.training.objectives.mars import Mars

OWN = 0xB10C
"""Keeps these draws apart from those of the phases, which have the same key."""


class RandomBlock(Mars):
    """As MARS, but for the block size; decoded with ``block_size``, the largest."""

    name = "random_block"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.alignment != "decoder":
            raise ValueError(f"alignment is {setup.alignment!r}: random_block knows decoder only")

    def row(self, example: Encoded, key: Key) -> Layout:
        """``[clean | masked]`` with a block size drawn for this conversation and epoch."""
        s = self.setup
        size = int(np.random.default_rng([s.seed, *key, OWN]).integers(2, s.block_size + 1))
        turns = int(example.turn.max()) + 1
        phases = [streams.block_phase(s.seed, *key, turn, size) for turn in range(turns)]
        return streams.mars_layout(example.ids, example.turn, size, phases, s.mask_id)


OBJECTIVES = {"random_block": RandomBlock}
