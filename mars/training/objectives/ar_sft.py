"""AR SFT: next-token cross-entropy on the response, over the clean stream alone."""

from __future__ import annotations

from mars.data import Encoded
from mars.streams import AR, Layout, ar_layout
from mars.training.objectives.base import Key, Objective


class ArSft(Objective):
    """L_AR alone."""

    name = "ar_sft"
    predicate = AR
    wants_mask = False

    def row(self, example: Encoded, key: Key) -> Layout:
        """The conversation itself."""
        return ar_layout(example.ids, example.response)

    def padded(self, length: int) -> int:
        """Nothing is added."""
        return length
