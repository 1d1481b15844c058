"""Jacobi decoding: the draft is the model's own earlier predictions, kept where they hold.

The window's guesses are forwarded in place of tokens; the longest prefix of guesses that greedy
decoding agrees with is accepted, plus one token. So the output is greedy decoding's, exactly.
A guess that was never predicted yet (all of them, at the first step) is the last prompt token;
after a step, the predictions that were not accepted are the guesses of the next.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import BoolTensor, LongTensor, Tensor

from mars.decoding.caches import Row
from mars.decoding.contract import DecodingError
from mars.decoding.window import WindowDecoder


class JacobiDecoder(WindowDecoder):
    """Fixed-point iteration over a window, for a plain AR model."""

    thresholded = False

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        if self._temperature > 0:
            raise DecodingError("jacobi is exact for greedy decoding only: set temperature: 0")

    def drafts(self, row: Row) -> bool:
        """Always: a guess that is kept costs nothing in exactness."""
        return True

    def agreement(
        self, draft: LongTensor, predicted: LongTensor, confidence: Tensor, tau: Tensor
    ) -> BoolTensor:
        """Prediction d stands if the guess it was made after, for d − 1, was right."""
        agree = torch.ones_like(predicted, dtype=torch.bool)
        agree[:, 1:] = draft[:, :-1] == predicted[:, :-1]
        return agree  # type: ignore[return-value]

    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """The predictions are the next guesses."""
        return predicted

    def known(self, before: int, after: int) -> int:
        """Guesses that held have their keys already; only the last accepted token does not."""
        return after - 1
