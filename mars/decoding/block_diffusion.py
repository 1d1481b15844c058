"""Block diffusion: block after block, each filled in the order of confidence.

The response is tiled by blocks of B from its start. A block attends to itself in both directions
and to everything before it; a step fills the masked positions whose confidence is at least τ, and
always the most confident one (at τ = 1, that one alone). A block is filled whole; what follows its
first end-of-turn, a stop sequence or the budget is dropped.

Alignment ``stream``: a token is predicted from the column before it, the first of a block from the
finished position before the block. ``own``: each mask predicts its own position.

A finished block is written to the cache by the first step of the next one, which forwards both.
The finished position's prediction is read there once; later steps of the block use it again.
Prompts are causal; earlier responses in them are read as part of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import BoolTensor, LongTensor, Tensor

from mars.decoding.base import BoundDecoder, Ended
from mars.decoding.caches import Cursor
from mars.decoding.contract import DecodingError, Finish, Request
from mars.decoding.rows import Batch, exhausted


@dataclass
class _Filling:
    """The block a row is filling: what was filled so far, and at which of its forwards."""

    first: tuple[float, float] = (0, 0)
    tokens: dict[int, int] = field(default_factory=dict)
    forward: dict[int, int] = field(default_factory=dict)


class BlockDiffusionDecoder(BoundDecoder):
    """Confidence-ordered filling. Caches: ``cursor``, and ``none`` as its reference."""

    def __init__(
        self, model: Any, tokenizer: Any, *, alignment: str = "stream", **settings: Any
    ) -> None:
        super().__init__(model, tokenizer, **settings)
        if alignment not in ("stream", "own"):
            raise DecodingError(f"alignment {alignment!r}: block diffusion knows stream and own")
        self.alignment = alignment
        self.fill = self.mask_id

    def spare(self, policy: Cursor) -> int:
        """The block written and the block being filled."""
        return 2 * self.width

    def check(self, request: Request, where: str) -> None:
        """As every method, and a whole block must fit."""
        super().check(request, where)
        prompt, positions = len(request.prompt_ids), self.backbone.positions
        if prompt + self.width > positions:
            raise DecodingError(
                f"{where}: a prompt of {prompt} tokens leaves no room for a block of "
                f"{self.width} in the model's {positions} positions: shorten it to at most "
                f"{positions - self.width}"
            )

    def step(self, batch: Batch, first: int, last: int, policy: Cursor, most: int) -> Ended:
        """One forward for some rows, and what it fills; a prompt is forwarded whole."""
        rows, size, device = batch.state[first:last], self.width, self.backbone.device
        known = np.stack([rows["cached"], rows["length"], rows["prompt"]])
        start, block, prompt = torch.from_numpy(known).to(device)
        tokens = batch.tokens[first:last]
        logits = self._logits(batch, first, start, block, prompt)  # type: ignore[arg-type]
        predicted, confidence = self.predict(logits)
        filling = [batch.notes.setdefault(int(index), _Filling()) for index in rows["index"]]
        if self.alignment == "stream":
            read = torch.tensor([row.first for row in filling], dtype=torch.float64, device=device)
            again = start == block  # the column before the block is not in the window
            predicted[:, 0] = torch.where(again, read[:, 0].to(predicted), predicted[:, 0])
            confidence[:, 0] = torch.where(again, read[:, 1].to(confidence), confidence[:, 0])
        columns = block[:, None] + torch.arange(size, device=device)
        present = tokens.gather(1, columns)
        masked = present == self.mask_id
        tau = torch.from_numpy(rows["tau"].copy()).to(device)
        fill = fill_masked(masked, confidence, tau)  # type: ignore[arg-type]
        tokens.scatter_(1, columns, torch.where(fill, predicted, present))
        sure = batch.confidence[first:last]
        sure.scatter_(1, columns, torch.where(fill, confidence.double(), sure.gather(1, columns)))
        told = torch.cat([fill.double(), predicted.double(), confidence.double()], dim=1)
        return self._settle(batch, first, filling, told.tolist())

    def _logits(
        self, batch: Batch, first: int, start: LongTensor, block: LongTensor, prompt: LongTensor
    ) -> Tensor:
        """(N, B, V) logits of the current block's tokens, of N rows from slot ``first`` on."""
        size, count = self.width, len(start)
        rows = batch.state[first : first + count]
        width = int((rows["length"] - rows["cached"]).max()) + size
        columns = start[:, None] + torch.arange(width, device=start.device)
        in_block = torch.div(columns - prompt[:, None], size, rounding_mode="floor")
        ends = prompt[:, None] + (in_block + 1) * size - 1
        hidden = self.backbone.hidden(
            batch.tokens[first : first + count].gather(1, columns),  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            torch.where(columns < prompt[:, None], columns, ends),  # type: ignore[arg-type]
            int(rows["cached"].max()) + width,
            batch.cache,
            first,
        )
        shift = 1 if self.alignment == "stream" else 0
        seen = (block - start - shift)[:, None] + torch.arange(size, device=start.device)
        seen = seen.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.backbone.logits(hidden.gather(1, seen))

    def _settle(
        self, batch: Batch, first: int, filling: list[_Filling], told: list[list[float]]
    ) -> Ended:
        """Note what was filled; close the blocks that are full."""
        size, ended = self.width, Ended()
        for slot, (block, values) in enumerate(zip(filling, told, strict=True), first):
            row = batch.state[slot]
            for place in range(size):
                if values[place]:
                    block.tokens[place] = int(values[size + place])
                    block.forward[place] = int(row["forwards"])
            row["forwards"] += 1
            block.first = values[size], values[2 * size]
            if batch.cache is not None:
                row["cached"] = row["length"]
            if len(block.tokens) == size:
                reason = self._close(batch, slot, block)
                batch.notes[int(row["index"])] = _Filling()
                if reason is not None:
                    ended[slot] = reason
                    del batch.notes[int(row["index"])]
        return ended

    def _close(self, batch: Batch, slot: int, block: _Filling) -> Finish | None:
        """Keep what a full block holds, and say whether the row ends with it."""
        row = batch.state[slot]
        ids = [block.tokens[place] for place in range(min(self.width, row["end"] - row["length"]))]
        count = next((i + 1 for i, token in enumerate(ids) if token in self.end_ids), len(ids))
        new = np.array([ids[:count]])
        stopped = self.stops(batch, slot, np.array([count]), new).get(0)
        count = count if stopped is None else stopped
        for place in range(count):
            batch.accepted[slot, block.forward[place]] += 1
        ended = ids[count - 1] in self.end_ids
        if ended or stopped is not None:
            row["length"] += count
            return "end_of_turn" if ended else "stop"
        row["length"] += self.width
        if row["length"] >= row["end"]:
            row["length"] = row["end"]
            return exhausted(row)
        return "context" if row["length"] + self.width > self.backbone.positions else None


def fill_masked(masked: BoolTensor, confidence: Tensor, tau: Tensor) -> BoolTensor:
    """Which masked positions a step fills: those at or above τ, at least the most confident.

    Args:
        masked: (N, B); confidence: (N, B); tau: (N,), 1 meaning one position a step.

    Returns:
        (N, B).
    """
    best = torch.where(masked, confidence, -1.0).argmax(1)
    fill = masked & (confidence >= tau[:, None]) & (tau < 1)[:, None]
    fill |= torch.nn.functional.one_hot(best, masked.shape[1]).bool() & masked
    return fill  # type: ignore[return-value]
