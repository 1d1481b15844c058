"""What every objective shares: its settings, its batch, and losses summed over tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mars.data import Encoded
from mars.streams import (
    IGNORE,
    Layout,
    Predicate,
    dense_mask,
    pack_row,
    pad_rows,
)
from mars.training.attention import is_packed, make_sight, shared_heads
from mars.training.cross_entropy import weighted_sums

Key = tuple[int, int]
"""(epoch, example): with the seed, what every random draw of an example depends on."""


@dataclass(frozen=True)
class Setup:
    """The settings of an objective in one training run."""

    block_size: int
    ar_weight: float
    alignment: str
    mask_id: int
    end_id: int
    pad_id: int
    seed: int


@dataclass(frozen=True)
class Counts:
    """What a batch holds; ``ar_terms`` of the ``terms`` are AR predictions (docs/method.md).

    ``attended`` counts the pairs of columns where one sees the other.
    """

    examples: int = 0
    clean_tokens: int = 0
    masked_tokens: int = 0
    response_tokens: int = 0
    ar_terms: int = 0
    terms: int = 0
    attended: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self.as_list(), other.as_list(), strict=True)))

    def as_list(self) -> list[int]:
        """The counts, in the order of the fields."""
        return [int(value) for value in vars(self).values()]


@dataclass(frozen=True)
class Batch:
    """One forward: its columns, what it holds, and which examples they are (for messages).

    ``weight`` 0 is for a process that has nothing to add, and still has to take part.
    """

    layout: Layout
    counts: Counts
    keys: tuple[Key, ...]
    weight: float = 1.0

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(self, layout=self.layout.to(device))


@dataclass(frozen=True)
class Terms:
    """Loss *sums* over tokens, 0-dim float32 or wider; None where an objective has no such term."""

    ar: Tensor | None
    mask: Tensor | None

    def total(self, ar_weight: float) -> Tensor:
        """``L_mask + ar_weight · L_AR``, still a sum."""
        if self.mask is None:
            assert self.ar is not None
            return self.ar
        return self.mask if self.ar is None else self.mask + ar_weight * self.ar


class Objective(ABC):
    """Examples → batch → loss sums. Subclasses say how a row is laid out and who sees whom."""

    name: str
    predicate: Predicate
    """Who sees whom."""
    wants_ar = True
    """Whether L_AR is computed."""
    wants_mask = True
    """Whether L_mask is computed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def row(self, example: Encoded, key: Key) -> Layout:
        """One example as one row of columns."""

    @abstractmethod
    def padded(self, length: int) -> int:
        """The longest a conversation of ``length`` tokens may become (positions needed)."""

    def collate(self, examples: Sequence[Encoded], keys: Sequence[Key]) -> Batch:
        """A batch with a row for each example."""
        rows = [[self.row(example, key)] for example, key in zip(examples, keys, strict=True)]
        return self.batch(rows, keys)

    def batch(
        self, rows: Sequence[Sequence[Layout]], keys: Sequence[Key], counts: Counts | None = None
    ) -> Batch:
        """A batch of packed rows, each of one or more conversations, padded on the right.

        ``counts`` are those of all of them, where they are known.
        """
        packed = [row[0] if len(row) == 1 else pack_row(row) for row in rows]
        layout = packed[0] if len(packed) == 1 else pad_rows(packed, self.setup.pad_id)
        counts = counts or self.count([document for row in rows for document in row])
        return Batch(layout, counts, tuple(keys))

    def count(self, documents: Sequence[Layout]) -> Counts:
        """What some conversations hold."""
        total = Counts()
        for layout in documents:
            masked = int(layout.masked.sum())
            with_mask = int((layout.mask_label != IGNORE).sum())
            on_clean = int(((layout.mask_label != IGNORE) & ~layout.masked).sum())
            response = int((layout.ar_label != IGNORE).sum())
            ar = response if self.wants_ar else 0
            total = total + Counts(
                examples=1,
                clean_tokens=layout.shape[1] - masked,
                masked_tokens=masked,
                response_tokens=response,
                ar_terms=ar + on_clean,
                terms=ar + with_mask,
                attended=visible_pairs(layout),
            )
        return total

    def loss(self, model: PreTrainedModel, batch: Batch) -> Terms:
        """The sums of L_AR and L_mask over the batch.

        The language-model head runs only on columns with loss, and once on a clean column that
        is a target of both terms (its two labels are the same token).
        """
        layout = batch.layout
        hidden = self._forward(model, layout)
        has_mask = ((layout.mask_label != IGNORE) & self.wants_mask).flatten()
        has_ar = ((layout.ar_label != IGNORE) & self.wants_ar).flatten()
        columns = torch.nonzero(has_mask | has_ar).flatten()
        has_mask, has_ar = has_mask[columns], has_ar[columns]
        labels = (layout.mask_label.flatten()[columns], layout.ar_label.flatten()[columns])
        weights = torch.stack([has_ar, layout.mask_weight.flatten()[columns] * has_mask])
        sums = weighted_sums(
            _Pick.apply(hidden.flatten(0, 1), columns),
            model.get_output_embeddings(),
            torch.where(has_mask, *labels),
            weights,
        )
        return Terms(
            ar=sums[0] if self.wants_ar else None, mask=sums[1] if self.wants_mask else None
        )

    def _forward(self, model: PreTrainedModel, layout: Layout) -> Tensor:
        """(N, S, E) last hidden states; with a dense mask where a model attends as it came."""
        if is_packed(model):
            made = make_sight(self.predicate, layout, shared_heads(model), _score_dtype(model))
            seen: dict[str, Any] = {"sight": made}
        else:
            seen = {"attention_mask": dense_mask(self.predicate, layout)}
        return model.base_model(
            input_ids=layout.input_ids, position_ids=layout.position, use_cache=False, **seen
        ).last_hidden_state


def _score_dtype(model: PreTrainedModel) -> torch.dtype:
    """Of attention's scores, which a mask is added to."""
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


class _Pick(torch.autograd.Function):
    """``x[columns]``, no column twice, so the gradient is copied and not added row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.shape = x.shape
        return x.index_select(0, columns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (columns,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.shape).index_copy_(0, columns, grads[0]), None


def visible_pairs(layout: Layout) -> int:
    """Pairs (query, key) where the query sees the key, of a row of one conversation.

    Blocks are taken as causal inside; a block of B that sees itself both ways has B(B−1)/2 more.
    """
    masked, block = layout.masked[0].numpy(), layout.block[0].numpy()
    length = int((~masked).sum())
    prefix = np.searchsorted(block[:length], block[length:], side="left")
    own = np.bincount(block[length:]) if length < len(block) else np.zeros(1, dtype=np.int64)
    return int(length * (length + 1) // 2 + prefix.sum() + (own * (own + 1) // 2).sum())


def extend(example: Encoded, count: int, end_id: int) -> Encoded:
    """The example with its last response padded by ``count`` end-of-turn tokens."""
    if not count:
        return example
    last = example.turn[-1]
    return Encoded(
        ids=torch.cat([example.ids, torch.full((count,), end_id)]),
        response=torch.cat([example.response, torch.ones(count, dtype=torch.bool)]),
        turn=torch.cat([example.turn, last.repeat(count)]),
        ended=example.ended,
    )


def shorten(example: Encoded, length: int) -> Encoded:
    """The first ``length`` tokens of an example whose last response was cut anyway."""
    return Encoded(
        example.ids[:length], example.response[:length], example.turn[:length], example.ended
    )
