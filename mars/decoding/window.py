"""The batch loop of every method that accepts a draft from the left: AR, MARS and Jacobi.

One step: forward, per row, the accepted tokens that are not yet cached and then its draft; the
last accepted column and the draft's columns give a prediction each; accept from the left. The
first step does the same with the whole prompt, so that prefill too may yield several tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import BoolTensor, LongTensor, Tensor

from mars.decoding.acceptance import accepted_counts
from mars.decoding.base import BoundDecoder
from mars.decoding.batch import Batch, exhausted
from mars.decoding.caches import Cursor, Row
from mars.decoding.contract import Finish, Generation, Request


class WindowDecoder(BoundDecoder, ABC):
    """Drafts ``width − 1`` tokens a step. Methods say what a draft is and when it is kept."""

    # ---- what a method defines

    fill: int | None = None
    """What stands in the columns after the accepted tokens at first (see ``Batch``)."""

    @abstractmethod
    def drafts(self, row: Row) -> bool:
        """Whether the row drafts at all; one that does not takes one token a step."""

    @abstractmethod
    def agreement(
        self, draft: LongTensor, predicted: LongTensor, confidence: Tensor, tau: Tensor
    ) -> BoolTensor:
        """(N, D) whether each prediction may follow those before it; column 0 is not read.

        Args:
            draft: (N, D) what stands in the columns that predictions 0 … D−1 are meant for.
            predicted: (N, D); confidence: (N, D); tau: (N, 1).
        """

    @abstractmethod
    def next_draft(self, predicted: LongTensor, rejected: BoolTensor) -> LongTensor:
        """(N, D) what to put in the columns of the predictions, accepted ones as predicted."""

    @abstractmethod
    def known(self, before: int, after: int) -> int:
        """The column up to which the window's inputs turned out to be accepted tokens."""

    # ---- the loop

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one batch; the generations come in the order of the requests."""
        policy = self.policy()
        batch = self.batch(requests, self.fill, spare=policy.uncached(self.width) + self.width)
        while batch.rows:
            self.step(batch, policy)
        return batch.generations

    def step(self, batch: Batch, policy: Cursor) -> None:
        """One forward for every active row, and what follows from it."""
        rows = batch.rows
        policy.begin(rows)
        available = [min(policy.room(row), self.width if self.drafts(row) else 1) for row in rows]
        logits, start = self.forward(batch, available)
        # Nothing below waits for the device, until counts, tokens and confidences come out at once.
        limit = torch.tensor(available, device=start.device)
        tau = torch.tensor([row.tau for row in rows], dtype=torch.float64, device=start.device)
        target = start[:, None] + torch.arange(logits.shape[1], device=start.device)
        predicted, confidence = self.predict(logits)
        tokens = batch.tokens[: len(rows)]
        agree = self.agreement(
            tokens.gather(1, target),  # type: ignore[arg-type]
            predicted,
            confidence,
            tau[:, None],
        )
        counts = accepted_counts(agree, predicted, limit, self._ends)  # type: ignore[arg-type]
        places = torch.arange(logits.shape[1], device=start.device)
        rejected = places >= counts[:, None]
        draft = self.next_draft(predicted, rejected)  # type: ignore[arg-type]
        waiting = (limit == 0)[:, None]
        tokens.scatter_(1, target, torch.where(waiting, tokens.gather(1, target), draft))
        emitted = torch.cat([counts[:, None].double(), predicted.double(), confidence.double()], 1)
        self._settle(batch, policy, emitted.tolist(), logits.shape[1])

    def forward(self, batch: Batch, available: Sequence[int]) -> tuple[Tensor, LongTensor]:
        """Logits of each row's predictions.

        Returns:
            (N, D, V) logits, D the most any row may take, and (N,) the column of the first.
        """
        rows = batch.rows
        most = max(available)
        starts = [row.cached if batch.cache is not None else 0 for row in rows]
        width = max(
            row.length - start + max(0, count - 1)
            for row, start, count in zip(rows, starts, available, strict=True)
        )
        place = torch.tensor([starts, [row.length for row in rows]], device=self.backbone.device)
        start, length = place[0], place[1]
        columns = start[:, None] + torch.arange(width, device=start.device)
        used = max(starts) + width
        hidden = self.backbone.hidden(
            batch.tokens[: len(rows)].gather(1, columns),  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            used,
            batch.cache,
        )
        # a column of padding is read only for predictions that the row may not take
        seen = (length - start - 1)[:, None] + torch.arange(most, device=start.device)
        seen = seen.clamp(max=width - 1)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.backbone.head(hidden.gather(1, seen)), length  # type: ignore[return-value]

    def _settle(self, batch: Batch, policy: Cursor, emitted: list[list[float]], most: int) -> None:
        """Write down what was accepted; let the rows that ended leave."""
        finished: list[tuple[int, Finish]] = []
        for slot, (row, values) in enumerate(zip(batch.rows, emitted, strict=True)):
            count = int(values[0])
            if count == 0:
                continue
            kept = row.generation
            kept.ids += [int(token) for token in values[1 : 1 + count]]
            stopped = self.find_stop(row, count)
            if stopped is not None and stopped < count:
                del kept.ids[stopped - count :]
                count = stopped
            kept.confidence += values[1 + most : 1 + most + count]
            kept.accepted.append(count)
            before, row.length = row.length, row.length + count
            policy.advance(row, self.known(before, row.length))
            if kept.ids[-1] in self.end_ids:
                finished.append((slot, "end_of_turn"))
            elif stopped is not None:
                finished.append((slot, "stop"))
            elif row.length == row.end:
                finished.append((slot, exhausted(row)))
        if finished:
            batch.finish(finished)
