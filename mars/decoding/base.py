"""What every decoding method is bound to: a model, its special tokens, its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import LongTensor, Tensor

from mars.decoding.acceptance import predict
from mars.decoding.backbone import Backbone
from mars.decoding.caches import POLICIES, Cursor
from mars.decoding.contract import DecodingError, Finish, Generation, Request, Work
from mars.decoding.rows import Batch, check_request
from mars.decoding.stopping import StopFinder

Ended = dict[int, Finish]
"""Slots of the rows that a step ended, and why."""


class BoundDecoder(ABC):
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
        positions: context limit; None: the model's.
        compile: compile the model's body.
    """

    thresholded = True
    """Whether τ means anything to the method; where not, a request may not bring one."""

    fill: int | None = None
    """What stands in the columns after the accepted tokens at first (see ``Batch``)."""

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
        positions: int | None = None,
        compile: bool = False,
    ) -> None:
        self.backbone = Backbone(model, positions=positions, compile=compile)
        self.width = width
        self.tau = tau
        self.mask_id = mask_id
        self.end_ids = frozenset(end_ids)
        self._tokenizer = tokenizer
        self._rule = rule
        self._cache = cache, cache_block
        self.policy()  # refuse a wrong combination now
        rows = max(getattr(model.config, "vocab_size", 0), mask_id + 1, *self.end_ids, 0) + 1
        self._is_end = torch.zeros(rows, dtype=torch.bool, device=self.backbone.device)
        self._is_end[sorted(self.end_ids)] = True
        self._temperature, self._generator = temperature, generator
        self._finders: list[StopFinder] = []
        self._finder_of: dict[tuple[str, ...], int] = {(): -1}

    # ---- what a method defines

    def round(self, batch: Batch, last: int, policy: Cursor, most: int) -> Ended:
        """Step all rows before slot ``last``: those whose prompt is not yet cached, and the others.

        The arguments and what is returned are as in ``step``.
        """
        old, ended = batch.count - batch.fresh, Ended()
        if last > old:
            ended |= self.step(batch, old, last, policy, most)
        if old:
            ended |= self.step(batch, 0, old, policy, most)
        return ended

    @abstractmethod
    def step(self, batch: Batch, first: int, last: int, policy: Cursor, most: int) -> Ended:
        """One forward for the rows in slots ``first`` to ``last``, and what follows from it.

        Args:
            batch: the rows in flight.
            first, last: a slice of them.
            policy: the cache's.
            most: of a prompt that is not yet cached, forward no more columns than this at once.

        Returns:
            The slots of the rows that ended, and why; the caller lets them leave.
        """

    @abstractmethod
    def spare(self, policy: Cursor) -> int:
        """Columns that a step may touch beyond a row's last token."""

    # ---- decoding

    def generate(self, requests: Sequence[Request], slots: int | None = None) -> list[Generation]:
        """Decode; the generations come in the order of the requests (see ``Decoder``)."""
        done = dict(self.stream(requests, slots))
        return [done[index] for index in range(len(requests))]

    def stream(
        self, requests: Sequence[Request], slots: int | None = None
    ) -> Iterator[tuple[int, Generation]]:
        """As ``generate``, each (index, generation) as soon as it is finished.

        The longest prompts come first: they need the most room, and short ones fill the gaps.
        """
        from mars.decoding.engine import Engine  # which drives decoders, and so imports them

        for index, request in enumerate(requests):
            self.check(request, f"request {index}")
        if not requests:
            return
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        columns = max(self.end(request) for request in requests)
        most = len(requests) if slots is None else min(slots, len(requests))
        engine = Engine(self, most, columns)
        for index in order:
            engine.submit(requests[index])
        while engine.active or engine.waiting:
            for number, generation in engine.step():
                yield order[number], generation

    @property
    def work(self) -> Work:
        """What was computed since it was last set to ``Work()``."""
        return self.backbone.work

    @work.setter
    def work(self, work: Work) -> None:
        self.backbone.work = work

    # ---- what methods share

    def policy(self) -> Cursor:
        """A fresh cache policy."""
        name, block = self._cache
        return POLICIES[name](block)

    def check(self, request: Request, where: str) -> None:
        """Refuse a request that this method cannot decode, naming it and the remedy."""
        check_request(request, where, self.backbone.positions, self.backbone.vocabulary)
        if not self.thresholded and request.tau not in (None, 1):
            raise DecodingError(
                f"{where}: tau is {request.tau}, but this method has no threshold: leave it out"
            )

    def end(self, request: Request) -> int:
        """The length at which budget or context of a request is used up."""
        return min(len(request.prompt_ids) + request.max_new_tokens, self.backbone.positions)

    def predict(self, logits: Tensor) -> tuple[LongTensor, Tensor]:
        """Tokens and confidences of logits, by this decoder's rule and temperature."""
        return predict(logits, self._rule, self.mask_id, self._temperature, self._generator)

    def finder(self, stop: tuple[str, ...]) -> int:
        """The number of the finder of some stop sequences; −1 where there are none."""
        if stop not in self._finder_of:
            self._finder_of[stop] = len(self._finders)
            self._finders.append(StopFinder(self._tokenizer, stop))
        return self._finder_of[stop]

    def stops(
        self, batch: Batch, first: int, counts: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> dict[int, int]:
        """Which rows' new tokens complete a stop sequence.

        Args:
            batch: the rows, the new tokens among those that they hold, but not yet in ``length``.
            first: the slot of the first of the N rows.
            counts: (N,) how many tokens each accepted; tokens: (N, D) the tokens.

        Returns:
            Place among the N rows → how many of its new tokens are kept.
        """
        found: dict[int, int] = {}
        if not self._finders:
            return found
        rows = batch.state[first : first + len(counts)]
        new = np.arange(tokens.shape[1]) < counts[:, None]
        for number in np.unique(rows["finder"]):
            if number < 0:
                continue
            finder = self._finders[number]
            mine = (rows["finder"] == number)[:, None] & new
            for place in np.flatnonzero((mine & finder.may_end(tokens)).any(axis=1)):
                slot, count = first + place, counts[place]
                row, after = batch.state[slot], int(rows["length"][place] + count)
                start = max(int(row["prompt"]), after - int(count) - finder.reach)
                kept = finder.find(batch.tokens[slot, start:after].tolist(), int(count))
                if kept is not None:
                    found[int(place)] = kept
        return found
