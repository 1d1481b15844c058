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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import BoolTensor, Tensor

from mars.decoding.base import BoundDecoder
from mars.decoding.batch import Batch, exhausted
from mars.decoding.caches import Row
from mars.decoding.contract import DecodingError, Finish, Generation, Request


@dataclass
class _Filling:
    """The block a row is filling: what was filled so far, and at which of its forwards."""

    first: tuple[float, float] = (0, 0)
    tokens: dict[int, int] = field(default_factory=dict)
    confidence: dict[int, float] = field(default_factory=dict)
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

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one batch; the generations come in the order of the requests."""
        batch = self.batch(requests, self.mask_id, spare=2 * self.width)
        for row in batch.rows:
            if row.length + self.width > self.backbone.positions:
                raise DecodingError(
                    f"request {row.index}: a prompt of {row.length} tokens leaves no room for a "
                    f"block of {self.width} in the model's {self.backbone.positions} positions: "
                    f"shorten it to at most {self.backbone.positions - self.width}"
                )
        filling = {row.index: _Filling() for row in batch.rows}
        while batch.rows:
            self.step(batch, filling)
        return batch.generations

    def step(self, batch: Batch, filling: dict[int, _Filling]) -> None:
        """One forward for every active row, and what it fills."""
        rows, size, device = batch.rows, self.width, self.backbone.device
        tokens = batch.tokens[: len(rows)]
        state = torch.tensor([[r.cached, r.length, len(r.request.prompt_ids)] for r in rows])
        start, block, prompt = state.to(device).unbind(1)
        predicted, confidence = self.predict(self._logits(batch, start, block, prompt))
        if self.alignment == "stream":
            known = torch.tensor([filling[row.index].first for row in rows], dtype=torch.float64)
            again = start == block  # the column before the block is not in the window
            predicted[:, 0] = torch.where(again, known[:, 0].to(predicted), predicted[:, 0])
            confidence[:, 0] = torch.where(again, known[:, 1].to(confidence), confidence[:, 0])
        columns = block[:, None] + torch.arange(size, device=device)
        present = tokens.gather(1, columns)
        fill = fill_masked(
            present == self.mask_id,  # type: ignore[arg-type]
            confidence,
            torch.tensor([row.tau for row in rows], dtype=torch.float64, device=device),
        )
        tokens.scatter_(1, columns, torch.where(fill, predicted, present))
        told = torch.cat([fill.double(), predicted.double(), confidence.double()], dim=1)
        self._settle(batch, filling, told.tolist())

    def _logits(self, batch: Batch, start: Tensor, block: Tensor, prompt: Tensor) -> Tensor:
        """(N, B, V) logits of the current block's tokens."""
        rows, size = batch.rows, self.width
        width = max(row.length - row.cached for row in rows) + size
        columns = start[:, None] + torch.arange(width, device=start.device)
        in_block = torch.div(columns - prompt[:, None], size, rounding_mode="floor")
        ends = prompt[:, None] + (in_block + 1) * size - 1
        hidden = self.backbone.hidden(
            batch.tokens[: len(rows)].gather(1, columns),  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            torch.where(columns < prompt[:, None], columns, ends),  # type: ignore[arg-type]
            max(row.cached for row in rows) + width,
            batch.cache,
        )
        shift = 1 if self.alignment == "stream" else 0
        seen = (block - start - shift)[:, None] + torch.arange(size, device=start.device)
        seen = seen.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.backbone.head(hidden.gather(1, seen))

    def _settle(self, batch: Batch, filling: dict[int, _Filling], told: list[list[float]]) -> None:
        """Note what was filled; close the blocks that are full."""
        size, finished = self.width, []
        for slot, (row, values) in enumerate(zip(batch.rows, told, strict=True)):
            block = filling[row.index]
            for place in range(size):
                if values[place]:
                    block.tokens[place] = int(values[size + place])
                    block.confidence[place] = values[2 * size + place]
                    block.forward[place] = row.generation.forwards
            row.generation.accepted.append(0)
            block.first = values[size], values[2 * size]
            if batch.cache is not None:
                row.cached = row.length
            if len(block.tokens) == size:
                reason = self._close(row, block)
                filling[row.index] = _Filling()
                if reason is not None:
                    finished.append((slot, reason))
        if finished:
            batch.finish(finished)

    def _close(self, row: Row, block: _Filling) -> Finish | None:
        """Keep what a full block holds, and say whether the row ends with it."""
        kept = row.generation
        count = min(self.width, row.end - row.length)
        ids = [block.tokens[place] for place in range(count)]
        count = next((i + 1 for i, token in enumerate(ids) if token in self.end_ids), count)
        kept.ids += ids[:count]
        stopped = self.find_stop(row, count)
        if stopped is not None and stopped < count:
            del kept.ids[stopped - count :]
            count = stopped
        for place in range(count):
            kept.confidence.append(block.confidence[place])
            kept.accepted[block.forward[place]] += 1
        row.length += self.width
        if kept.ids[-1] in self.end_ids:
            return "end_of_turn"
        if stopped is not None:
            return "stop"
        if row.length >= row.end:
            return exhausted(row)
        return "context" if row.length + self.width > self.backbone.positions else None


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
