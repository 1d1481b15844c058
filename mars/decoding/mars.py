"""MARS: the draft is B − 1 masks, kept from the left while the model is confident."""

from __future__ import annotations

from typing import Any

import torch
from torch import BoolTensor, LongTensor, Tensor

from mars.decoding.caches import Row
from mars.decoding.window import WindowDecoder


class MarsDecoder(WindowDecoder):
    """Drafts with masks; accepts while the confidence is at least τ.

    A row at τ = 1 drafts nothing: one token a step, whatever the probabilities round to.
    """

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        self.fill = self.mask_id

    def drafts(self, row: Row) -> bool:
        """Unless the row asks for one token a step."""
        return row.tau < 1

    def agreement(
        self, draft: LongTensor, predicted: LongTensor, confidence: Tensor, tau: Tensor
    ) -> BoolTensor:
        """Confidence at or above τ."""
        return confidence >= tau  # type: ignore[return-value]

    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """Masks again, wherever a prediction was not accepted."""
        assert self.fill is not None
        return torch.where(rejected, self.fill, predicted)  # type: ignore[return-value]

    def known(self, before: int, after: int) -> int:
        """Masks were in the place of what this step accepted: only what came before is known."""
        return before
