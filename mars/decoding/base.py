"""What every decoding method is bound to: a model, its special tokens, its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import LongTensor, Tensor

from mars.decoding.acceptance import predict
from mars.decoding.batch import Batch
from mars.decoding.caches import POLICIES, Backbone, Cursor, Row
from mars.decoding.contract import DecodingError, Request
from mars.decoding.stopping import StopFinder


class BoundDecoder:
    """A method bound to a model.

    Args:
        model: a causal LM of ``transformers``.
        tokenizer: decodes stop sequences; may be None where requests have none.
        width: tokens a step may accept at most.
        tau: threshold of the rows that do not bring their own.
        rule: acceptance rule, a key of ``acceptance.RULES``.
        cache: a key of ``caches.POLICIES``; cache_block: its B_cache.
        mask_id: the id of ``[MASK]``, never emitted.
        end_ids: end-of-turn ids.
        temperature, generator: sampling; 0 is greedy.
    """

    thresholded = True
    """Whether τ means anything to the method; where not, a request may not bring one."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        width: int,
        tau: float,
        rule: str,
        cache: str,
        cache_block: int | None,
        mask_id: int,
        end_ids: Sequence[int],
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.backbone = Backbone(model)
        self.width = width
        self.mask_id = mask_id
        self.end_ids = frozenset(end_ids)
        self._tokenizer = tokenizer
        self._tau, self._rule = tau, rule
        self._cache = cache, cache_block
        self.policy()  # refuse a wrong combination now
        self._ends: LongTensor = torch.tensor(  # type: ignore[assignment]
            sorted(self.end_ids), dtype=torch.long, device=self.backbone.device
        )
        self._temperature, self._generator = temperature, generator
        self._finders: dict[tuple[str, ...], StopFinder] = {}

    def policy(self) -> Cursor:
        """A fresh cache policy, one a batch."""
        name, block = self._cache
        return POLICIES[name](block)

    def batch(self, requests: Sequence[Request], fill: int | None, spare: int) -> Batch:
        """Lay out requests that this method can decode (see ``Batch``)."""
        for index, request in enumerate(requests):
            if not self.thresholded and request.tau not in (None, 1):
                raise DecodingError(
                    f"request {index}: tau is {request.tau}, but this method has no threshold: "
                    "leave it out"
                )
        return Batch(requests, self.backbone, self._tau, fill, spare, self.policy().stores)

    def predict(self, logits: Tensor) -> tuple[LongTensor, Tensor]:
        """Tokens and confidences of logits, by this decoder's rule and temperature."""
        return predict(logits, self._rule, self.mask_id, self._temperature, self._generator)

    def find_stop(self, row: Row, new: int) -> int | None:
        """How many of a row's last ``new`` tokens a stop sequence leaves; None: none found."""
        stop = row.request.stop
        if not stop:
            return None
        if stop not in self._finders:
            self._finders[stop] = StopFinder(self._tokenizer, stop)
        return self._finders[stop].find(row.generation.ids, new)
