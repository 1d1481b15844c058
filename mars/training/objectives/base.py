"""What every objective shares: its settings, its batch, and losses summed over tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from mars.data import Encoded
from mars.streams import IGNORE, Layout, Predicate, dense_mask, pad_rows

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
    """What a batch holds; ``ar_terms`` of the ``terms`` are AR predictions (docs/method.md)."""

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
    """One micro-batch: its columns, what it holds, and which examples they are (for messages)."""

    layout: Layout
    counts: Counts
    keys: tuple[Key, ...]

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
    predicate: Predicate | None
    """Visibility for the dense mask; None: plain causality, which needs no mask."""
    wants_ar = True
    """Whether L_AR is computed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def row(self, example: Encoded, key: Key) -> Layout:
        """One example as one row of columns."""

    @abstractmethod
    def padded(self, length: int) -> int:
        """The longest a conversation of ``length`` tokens may become (positions needed)."""

    def collate(self, examples: Sequence[Encoded], keys: Sequence[Key]) -> Batch:
        """Rows padded on the right to the longest."""
        rows = [self.row(example, key) for example, key in zip(examples, keys, strict=True)]
        layout = pad_rows(rows, self.setup.pad_id)
        return Batch(layout, self._count(layout), tuple(keys))

    def _count(self, layout: Layout) -> Counts:
        real = layout.document >= 0
        has_mask = layout.mask_label != IGNORE
        masked = int(layout.masked.sum())
        response = int((layout.ar_label != IGNORE).sum())
        ar = response if self.wants_ar else 0
        return Counts(
            examples=len(layout.input_ids),
            clean_tokens=int(real.sum()) - masked,
            masked_tokens=masked,
            response_tokens=response,
            ar_terms=ar + int((has_mask & ~layout.masked).sum()),
            terms=ar + int(has_mask.sum()),
            attended=layout.input_ids.numel() * layout.shape[1],
        )

    def loss(self, model: PreTrainedModel, batch: Batch) -> Terms:
        """The sums of L_AR and L_mask over the batch.

        The language-model head runs only on columns with loss, and once on a clean column that
        is a target of both terms (its two labels are the same token).
        """
        layout = batch.layout
        if self.predicate is None:
            mask, position = None, None
        else:
            mask, position = dense_mask(self.predicate, layout), layout.position
        hidden = model.base_model(
            input_ids=layout.input_ids,
            attention_mask=mask,
            position_ids=position,
            use_cache=False,
        ).last_hidden_state
        has_mask = layout.mask_label != IGNORE
        has_ar = (layout.ar_label != IGNORE) & self.wants_ar
        rows, columns = torch.nonzero(has_mask | has_ar, as_tuple=True)
        head = model.get_output_embeddings()
        logits = head(hidden[rows, columns])
        if logits.dtype != torch.float64:
            logits = logits.float()
        has_mask, has_ar = has_mask[rows, columns], has_ar[rows, columns]
        target = torch.where(
            has_mask, layout.mask_label[rows, columns], layout.ar_label[rows, columns]
        )
        nll = cross_entropy(logits, target, reduction="none")
        weight = layout.mask_weight[rows, columns].to(nll.dtype)
        return Terms(
            ar=(nll * has_ar).sum() if self.wants_ar else None,
            mask=(nll * weight * has_mask).sum() if self.predicate is not None else None,
        )


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
