"""MARS: the draft is B − 1 masks, kept from the left while the model is confident."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import BoolTensor, LongTensor

from mars.decoding.drafts import DraftLength
from mars.decoding.rows import Rows
from mars.decoding.window import Predictions, WindowDecoder


class MarsDecoder(WindowDecoder):
    """Drafts with masks; accepts while the confidence is at least τ.

    A row at τ = 1 drafts nothing: one token a step, whatever the probabilities round to.

    Args:
        drafts: chooses the length of each draft; None: always the whole width.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, drafts: DraftLength | None = None, **settings: Any
    ) -> None:
        super().__init__(model, tokenizer, **settings)
        self.fill = self.mask_id
        self._drafts = drafts

    def draft_lengths(self, rows: Rows) -> NDArray[np.int64]:
        """The whole width or what was chosen, but for rows that ask for one token a step.

        Beside a prompt the masks cost nothing to speak of, and what they tell is for free. But
        where no draft pays, rows are to end together as far as they can, as AR's do: one that is
        ahead of the others leaves a place that waits for theirs, or is filled by itself.
        """
        longest: NDArray[np.int64] | int = self.width
        if self._drafts is not None:
            chosen = self._drafts.choose(len(rows))
            free = (rows["forwards"] == 0) & (self._drafts.pays or len(rows) == 1)
            longest = np.where(free, self.width, chosen)
        return np.where(rows["tau"] < 1, longest, 1)

    def took(self, limit: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Learn from it."""
        if self._drafts is not None:
            self._drafts.observe(limit, counts)

    def agreement(self, step: Predictions) -> BoolTensor:
        """Confidence at or above τ."""
        return step.confidence >= step.tau  # type: ignore[return-value]

    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """Masks again, wherever a prediction was not accepted."""
        return torch.where(rejected, self.mask_id, predicted)  # type: ignore[return-value]

    def known(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Masks were in the place of what this step accepted: only what came before is known."""
        return before
