"""The step of every method that accepts a draft from the left: AR, MARS and Jacobi.

One step: forward, per row, the accepted tokens that are not yet cached and then its draft; the
last accepted column and the draft's columns give a prediction each; accept from the left. The
first step does the same with the whole prompt, so that prefill too may yield several tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import BoolTensor, LongTensor, Tensor

from mars.decoding.acceptance import accepted_counts
from mars.decoding.backbone import Spans
from mars.decoding.base import BoundDecoder, Ended
from mars.decoding.caches import Cursor
from mars.decoding.rows import Batch, Rows, exhausted


class Predictions(NamedTuple):
    """What a step predicted, N rows and D predictions each.

    Attributes:
        draft: (N, D) what stands in the columns that the predictions are meant for.
        predicted: (N, D) tokens; confidence: (N, D) theirs.
        column: (N, D) the columns.
        tau: (N, 1) float64; prompt: (N, 1) tokens of the prompt; index: (N, 1) of the request.
    """

    draft: LongTensor
    predicted: LongTensor
    confidence: Tensor
    column: LongTensor
    tau: Tensor
    prompt: LongTensor
    index: LongTensor


class WindowDecoder(BoundDecoder):
    """Drafts up to ``width − 1`` tokens a step. Methods say what a draft is, and when it stays."""

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        self._numbers = torch.arange(64, device=self.backbone.device)

    # ---- what a method defines

    @abstractmethod
    def draft_lengths(self, rows: Rows) -> NDArray[np.int64]:
        """(N,) how many tokens each row may accept this step, its draft and one more."""

    @abstractmethod
    def agreement(self, step: Predictions) -> BoolTensor:
        """(N, D) whether each prediction may follow those before it; column 0 is not read."""

    @abstractmethod
    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """(N, D) what to put in the columns of the predictions, accepted ones as predicted."""

    @abstractmethod
    def known(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) up to which column the windows' inputs turned out to be accepted tokens.

        Args:
            before, after: (N,) the rows' lengths before and after the step.
        """

    def took(self, limit: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Told after each step, (N,) each: what the rows might accept, and what they did."""

    # ---- the step

    def spare(self, policy: Cursor) -> int:
        """The widest window may start at the last column of the longest row."""
        return policy.uncached(self.width) + self.width

    def round(self, batch: Batch, last: int, policy: Cursor, most: int) -> Ended:
        """One forward: the prompts' columns and the windows of the rows in flight side by side."""
        return self.step(batch, 0, last, policy, most)

    def step(self, batch: Batch, first: int, last: int, policy: Cursor, most: int) -> Ended:
        """One forward for some rows, and what follows from it (see ``BoundDecoder``)."""
        rows = batch.state[first:last]
        limit = np.minimum(policy.room(rows), self.draft_lengths(rows))
        start = rows["cached"] if batch.cache is not None else np.zeros_like(limit)
        stop = np.where(limit > 0, rows["length"] + limit - 1, start)
        fresh = batch.count - batch.fresh  # the slot of the first row that is being prefilled
        part = (start + most < rows["length"]) & (np.arange(first, last) >= fresh)
        limit = np.where(part, 0, limit)  # a long prompt's last part comes with a draft
        stop = np.where(part, start + most, stop)
        if (stop == start).all():
            return {}  # all wait for a row that is still being prefilled
        apart = fresh - first if first < fresh < last and batch.cache is not None else 0
        told = self._forward(batch, first, Spans(start, stop, apart), limit)
        if part.any():
            rows["cached"] = np.where(part, stop, rows["cached"])
        if not len(told):
            return {}
        counts, ended, tokens = told[:, 0], told[:, 1] > 0, told[:, 2:]
        self.took(limit, counts)
        stopped = self.stops(batch, first, counts, tokens)
        for place, kept in stopped.items():
            ended[place] &= kept == counts[place]
            counts[place] = kept
        return self._settle(batch, first, policy, counts, ended, stopped)

    def _forward(
        self,
        batch: Batch,
        first: int,
        spans: Spans,
        limit: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Forward windows of N rows, accept, and write what was accepted and the next draft.

        Args:
            batch: the rows; first: the slot of the first.
            spans: where their windows lie; limit: (N,) what each may accept.

        Returns:
            (N, 2 + D): how many each accepted, whether the last ends the turn, the predictions.
            Empty where no row may accept anything.
        """
        start, width, depth = spans.start, spans.width, int(limit.max())
        count = len(start)
        rows, device = batch.state[first : first + count], self.backbone.device
        known = np.stack([start, rows["length"], limit, rows["prompt"], rows["index"]])
        place = torch.from_numpy(known).to(device)[..., None]
        begin, length = place[0], place[1]
        tokens = batch.tokens[first : first + count]
        columns = begin + self._counted(width)
        if spans.apart:
            # where a prompt is padded for, others' columns are beyond the last there is
            columns = columns.clamp(max=tokens.shape[1] - 1)
        # a column of padding is read only for predictions that the row may not take
        seen = length - begin - 1 + self._counted(max(depth, 1))
        read = self.backbone.read(
            tokens.gather(1, columns),  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            seen,  # type: ignore[arg-type]
            spans,
            batch.cache,
            first,
        )
        if depth == 0:
            return np.empty((0, 2), dtype=np.int64)
        predicted, confidence = self.predict(self.backbone.logits(read))
        column = length + self._counted(depth)
        counts, draft = self._accept(tokens, column, predicted, confidence, place, rows["tau"])  # type: ignore[arg-type]
        if (limit == 0).any():  # a row that waits keeps its draft
            draft = torch.where(place[2] == 0, tokens.gather(1, column), draft)  # type: ignore[assignment]
        tokens.scatter_(1, column, draft)
        batch.confidence[first : first + count].scatter_(1, column, confidence.double())
        # an end-of-turn is the last token that is accepted, wherever it stands
        last = self._counted(depth) == counts[:, None] - 1
        ended = (self._is_end[predicted] & last).any(1, keepdim=True)
        # the one time that a step waits for the device
        return torch.cat([counts[:, None], ended, predicted], dim=1).cpu().numpy()

    def _accept(
        self,
        tokens: LongTensor,
        column: LongTensor,
        predicted: LongTensor,
        confidence: Tensor,
        place: LongTensor,
        tau: NDArray[np.float64],
    ) -> tuple[LongTensor, LongTensor]:
        """(N,) how many predictions become tokens, and (N, D) what stands in their columns next.

        Args:
            tokens: (N, C); column, predicted, confidence: (N, D).
            place: (5, N, 1) start, length, limit, prompt and index of each row; tau: (N,).
        """
        if predicted.shape[1] == 1:
            return place[2, :, 0].clamp(max=1), predicted  # type: ignore[return-value]
        taus = torch.from_numpy(tau.copy()).to(place.device)[:, None]
        draft = tokens.gather(1, column)
        step = Predictions(draft, predicted, confidence, column, taus, place[3], place[4])  # type: ignore[arg-type]
        ends = self._is_end[predicted]
        counts = accepted_counts(self.agreement(step), ends, place[2, :, 0])  # type: ignore[arg-type]
        rejected = self._counted(predicted.shape[1]) >= counts[:, None]
        return counts, self.next_draft(predicted, rejected)  # type: ignore[arg-type]

    def _counted(self, count: int) -> LongTensor:
        """(count,) 0, 1, 2 …, made once."""
        if count > len(self._numbers):
            self._numbers = torch.arange(2 * count, device=self.backbone.device)
        return self._numbers[:count]  # type: ignore[return-value]

    def _settle(
        self,
        batch: Batch,
        first: int,
        policy: Cursor,
        counts: NDArray[np.int64],
        ended: NDArray[np.bool_],
        stopped: dict[int, int],
    ) -> Ended:
        """Note what N rows kept, and find those that end."""
        rows, took = batch.state[first : first + len(counts)], counts > 0
        batch.accepted[first + np.flatnonzero(took), rows["forwards"][took]] = counts[took]
        rows["forwards"] += took
        before = rows["length"].copy()
        rows["length"] += counts
        policy.advance(rows, self.known(before, rows["length"]), took)
        over: Ended = {}
        for place in np.flatnonzero(took & (rows["length"] == rows["end"])):
            over[first + int(place)] = exhausted(rows[place])
        over |= {first + place: "stop" for place in stopped}
        over |= {first + int(place): "end_of_turn" for place in np.flatnonzero(ended)}
        return over
