"""Continuous batching: requests wait for a slot, rows in flight share forwards, and leave alone.

A round *prefills* rows whose prompt is not yet whole in the cache, and is a step of all the
others: one forward, where the method accepts from the left. A prefill takes a bounded number of
columns, so that the rows in flight never wait for more than that: several short prompts at once,
or a part of a long one.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import numpy as np
import torch

from mars.decoding.base import BoundDecoder
from mars.decoding.contract import DecodingError, Generation, Request
from mars.decoding.rows import ROW, Batch, Rows

PREFILL_COLUMNS = 2048
"""Columns of prompts that one prefill forwards, give or take a prompt."""

MOST_PADDED = 2
"""Times as many, at most, inside attention, where the rows are padded to the widest."""

SLOTS_PER_PREFILL = 8
"""A prefill waits until one slot of so many is free: a forward of few prompts costs nearly what
one of several does. A rule of thumb, from what an idle slot and a forward cost on a CPU; up to 15
slots it is one prompt at a time, and nothing ever waits."""


class Engine:
    """The rows in flight of one decoder, and the requests that wait.

    Args:
        decoder: of ``make_decoder``.
        slots: rows in flight at most.
        columns: the longest prompt and budget together that it will be given.
        prefill: columns that one prefill forwards.
    """

    def __init__(
        self, decoder: BoundDecoder, slots: int, columns: int, prefill: int = PREFILL_COLUMNS
    ) -> None:
        if slots < 1:
            raise DecodingError(f"slots is {slots}: at least 1 row must be in flight")
        self._decoder, self._columns, self._prefill = decoder, columns, prefill
        self._policy = decoder.policy()
        self._batch = Batch(
            decoder.backbone,
            slots,
            columns + decoder.spare(self._policy),
            decoder.fill,
            self._policy.stores,
        )
        self._queue: deque[tuple[int, Request]] = deque()
        self._submitted = 0
        self._tau = decoder.tau
        self._share = 0.0  # seconds a row in flight since the start was charged

    @property
    def active(self) -> int:
        """Rows in flight."""
        return self._batch.count

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return len(self._queue)

    @property
    def backlog(self) -> int:
        """Requests that the next step leaves without a slot."""
        return len(self._queue) - self._admissible()

    def submit(self, request: Request) -> int:
        """Let a request wait for a slot; returns its number: 0, 1, 2 …"""
        number = self._submitted
        self._decoder.check(request, f"request {number}")
        if self._decoder.end(request) > self._columns:
            raise DecodingError(
                f"request {number}: {len(request.prompt_ids)} tokens of prompt and "
                f"{request.max_new_tokens} new ones are more than the {self._columns} columns "
                "this engine was made for: make it with more"
            )
        self._submitted += 1
        self._queue.append((number, request))
        return number

    def set_tau(self, tau: float, index: int | None = None) -> None:
        """Change the threshold, from the next step on.

        Args:
            tau: in (0, 1]; 1 is one token a step.
            index: of this request; None: of all in flight, waiting, and to come without their own.
        """
        if not 0 < tau <= 1:
            raise DecodingError(f"tau is {tau}: it must lie in (0, 1]")
        if not self._decoder.thresholded and tau != 1:
            raise DecodingError("this method has no threshold: leave tau at 1")
        rows = self._batch.rows
        if index is None:
            self._tau = tau
            rows["tau"] = tau
            self._queue = deque(
                (i, request if request.tau is None else replace(request, tau=None))
                for i, request in self._queue
            )
        elif (mine := rows["index"] == index).any():
            rows["tau"][mine] = tau
        elif any(i == index for i, _ in self._queue):
            self._queue = deque(
                (i, replace(request, tau=tau) if i == index else request)
                for i, request in self._queue
            )
        else:
            raise DecodingError(f"request {index} is neither in flight nor waiting")

    def so_far(self, index: int) -> list[int]:
        """The tokens that a request in flight has kept; none while it waits."""
        slots = np.flatnonzero(self._batch.rows["index"] == index)
        return self._batch.response(int(slots[0])).tolist() if len(slots) else []

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """One round. Returns the (number, generation) of the requests that it finished."""
        began = time.perf_counter()
        self._admit()
        batch = self._batch
        if not batch.count:
            return []
        self._policy.begin(batch.rows)
        old, share = batch.count - batch.fresh, 1 / batch.count
        filling = batch.rows[old:]
        if batch.fresh:
            filling = filling[: _together(filling, self._prefill)]
        ended = self._decoder.round(batch, old + len(filling), self._policy, self._prefill)
        batch.fresh -= int((filling["forwards"] > 0).sum())
        done = [
            (int(batch.state[slot]["index"]), batch.generation(slot, reason))
            for slot, reason in ended.items()
        ]
        self._share += share * (time.perf_counter() - began)
        for (_, generation), slot in zip(done, ended, strict=True):
            generation.seconds = self._share - float(batch.state[slot]["since"])
        if ended:
            batch.leave(np.fromiter(ended, dtype=np.int64))
        return done

    def _admit(self) -> None:
        """Give slots to the requests that wait longest, as many as may have one now."""
        if count := self._admissible():
            batch, taken = self._batch, [self._queue.popleft() for _ in range(count)]
            batch.admit([request for _, request in taken], self._states(taken))
            if batch.cache is None:  # nothing to prefill: every step forwards the whole row
                batch.fresh = 0

    def _admissible(self) -> int:
        """How many requests may have a slot now: as many as are free, once enough of them are."""
        batch, waiting = self._batch, len(self._queue)
        slots = len(batch.state)
        count = min(slots - batch.count, waiting)
        enough = min(max(slots // SLOTS_PER_PREFILL, 1), waiting) if batch.count else 1
        return count if count >= enough and self._policy.admits(batch.rows) else 0

    def _states(self, taken: list[tuple[int, Request]]) -> Rows:
        """(K,) the rows of requests as they begin."""
        states = np.zeros(len(taken), dtype=ROW)
        for row, (number, request) in zip(states, taken, strict=True):
            row["index"] = number
            row["prompt"] = row["length"] = row["block_end"] = len(request.prompt_ids)
            row["end"], row["budget"] = self._decoder.end(request), request.max_new_tokens
            row["tau"] = self._tau if request.tau is None else request.tau
            row["finder"] = self._decoder.finder(request.stop)
            row["since"] = self._share
        return states


def _together(rows: Rows, columns: int) -> int:
    """How many of some fresh rows, from the first on, one prefill forwards.

    Rows that begin together need no mask, and none reaches beyond the columns there are. So what
    is left of a long prompt goes alone (only the first row's can have begun), and rows are not
    padded to much more than ``columns``, as short prompts beside a long one would be.
    """
    if rows["cached"][0]:
        return 1
    left = rows["length"]
    before = left.cumsum() - left
    padded = np.arange(1, len(left) + 1) * np.maximum.accumulate(left)
    return max(1, int(((before < columns) & (padded <= MOST_PADDED * columns)).sum()))
