"""Plain autoregressive decoding: MARS that drafts nothing."""

from __future__ import annotations

from typing import Any

from mars.decoding.mars import MarsDecoder


class ArDecoder(MarsDecoder):
    """One token a step, by the same loop and caches as MARS at τ = 1."""

    thresholded = False

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings | {"width": 1})
