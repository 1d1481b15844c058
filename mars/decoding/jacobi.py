"""Jacobi decoding: the draft is the model's own earlier predictions, kept where they hold.

The window's guesses are forwarded in place of tokens; the longest prefix of guesses that greedy
decoding agrees with is accepted, plus one token. So the output is greedy decoding's, exactly.
A guess that was never predicted yet (all of them, at the first step) is the last prompt token;
after a step, the predictions that were not accepted are the guesses of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import BoolTensor, LongTensor

from mars.decoding.contract import DecodingError
from mars.decoding.rows import Rows
from mars.decoding.window import Predictions, WindowDecoder


class JacobiDecoder(WindowDecoder):
    """Fixed-point iteration over a window, for a plain AR model."""

    thresholded = False

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        if self._temperature > 0:
            raise DecodingError("jacobi is exact for greedy decoding only: set temperature: 0")

    def draft_lengths(self, rows: Rows) -> NDArray[np.int64]:
        """Always the whole width: a guess that is kept costs nothing in exactness."""
        return np.full(len(rows), self.width)

    def agreement(self, step: Predictions) -> BoolTensor:
        """Prediction d stands if the guess it was made after, for d − 1, was right."""
        agree = torch.ones_like(step.predicted, dtype=torch.bool)
        agree[:, 1:] = step.draft[:, :-1] == step.predicted[:, :-1]
        return agree  # type: ignore[return-value]

    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """The predictions are the next guesses."""
        return predicted

    def known(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Guesses that held have their keys already; only the last accepted token does not."""
        return after - 1
