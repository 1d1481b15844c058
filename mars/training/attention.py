"""Attention in training: every conversation by itself, and no key that a query cannot see.

Registered through ``transformers``' attention interface, so no model code is patched. Linear
layers run over packed rows; only inside attention are columns put together by conversation. Two
ways, from the same predicates (``mars.streams``):

* :class:`Documents` (CPU, and the fallback): conversations of similar length are laid side by
  side, ``(n, clean slots | masked slots)``, and their queries are taken in chunks, each with the
  keys that any of its queries sees. SDPA computes all pairs of a call, whether masked, causal or
  not, so pairs are saved by not asking for them.
* :class:`Flex` (CUDA): FlexAttention over the rows as they are, with a block mask built once a
  batch. FlexAttention has no backward on CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mars.streams import Layout, Predicate, mask_mod

NAME = "mars_training"
CHUNK = 128
"""Queries of one call: fewer skip more pairs that nobody sees, more make better use of a call."""
ALIKE = 0.8
"""Conversations padded to one width are at least this share of it."""


class Sight(Protocol):
    """Who sees whom in one batch, in a form that attention can use."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """(N, G·H, S, D) queries, (N, H, S, D) keys and values → (N, S, G·H, D)."""
        ...


def make_sight(predicate: Predicate, layout: Layout, heads: int, dtype: torch.dtype) -> Sight:
    """The sight of a batch on its device.

    Args:
        predicate: who sees whom; layout: the columns.
        heads: G, query heads that share a key head; dtype: of the scores.
    """
    if layout.input_ids.is_cuda:
        return Flex(predicate, layout)
    return Documents(predicate, layout, heads, dtype)


# --------------------------------------------------------------------------- by conversation


@dataclass(frozen=True)
class Chunk:
    """Some queries of a group, and the keys that any of them sees.

    Attributes:
        start, stop: the queries, as slots of the group.
        keys: one or two slices of slots (clean; masked).
        mask: (n, 1, G · queries, keys); 0 where a query sees a key, −inf elsewhere.
    """

    start: int
    stop: int
    keys: tuple[slice, ...]
    mask: Tensor


@dataclass(frozen=True)
class Group:
    """``documents`` conversations padded to ``width`` slots."""

    documents: int
    width: int
    chunks: tuple[Chunk, ...]


class Documents:
    """Attention by conversation, through SDPA."""

    def __init__(
        self, predicate: Predicate, layout: Layout, heads: int, dtype: torch.dtype
    ) -> None:
        flat = layout.view(1, -1)
        self.heads = heads
        self.groups: list[Group] = []
        slots = []
        for columns, clean in _groups(layout):
            slots.append(columns.flatten())
            chunks = _chunks(predicate, flat, columns, clean, heads, dtype)
            self.groups.append(Group(len(columns), columns.shape[1], tuple(chunks)))
        # column of every slot, slot of every column, and those that have none
        column = torch.cat(slots)
        self.padded_slots = torch.nonzero(column < 0).flatten()
        self.column = column.clamp_min(0)
        slot = torch.full((layout.input_ids.numel(),), -1)
        real = torch.nonzero(column >= 0).flatten()
        slot[column[real]] = real
        self.padded_columns = torch.nonzero(slot < 0).flatten()
        self.slot = slot.clamp_min(0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See :class:`Sight`."""
        rows, heads, width, size = query.shape
        states = [
            take(_columns(x), self.column, self.slot, self.padded_columns)
            for x in (query, key, value)
        ]
        sizes = [group.documents * group.width for group in self.groups]
        parts = zip(*(x.split(sizes) for x in states), strict=True)
        out = [
            self._group(group, q, k, v, size, scale)
            for group, (q, k, v) in zip(self.groups, parts, strict=True)
        ]
        joined = torch.cat(out) if len(out) > 1 else out[0]
        back = take(joined, self.slot, self.column, self.padded_slots)
        return back.view(rows, width, heads, size)

    def _group(
        self,
        group: Group,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        size: int,
        scale: float | None,
    ) -> Tensor:
        """(n · W, heads · D) each → (n · W, G · H · D)."""
        q, k, v = (
            x.view(group.documents, group.width, -1, size).transpose(1, 2)
            for x in (query, key, value)
        )
        out = []
        for chunk in group.chunks:
            asked = q[:, :, chunk.start : chunk.stop]
            kept = k.shape[1]
            out.append(
                scaled_dot_product_attention(
                    asked.reshape(len(q), kept, -1, size),  # a group's heads share their keys
                    _slots(k, chunk.keys),
                    _slots(v, chunk.keys),
                    attn_mask=chunk.mask,
                    scale=scale,
                ).view(asked.shape)
            )
        joined = torch.cat(out, dim=2) if len(out) > 1 else out[0]
        return joined.transpose(1, 2).reshape(group.documents * group.width, -1)


def _columns(states: Tensor) -> Tensor:
    """(N, H, S, D) → (N · S, H · D); a view where the model made them as it usually does."""
    rows, _, width, _ = states.shape
    return states.transpose(1, 2).reshape(rows * width, -1)


def _slots(states: Tensor, keys: tuple[slice, ...]) -> Tensor:
    """(n, H, W, D) → the slots of some slices."""
    found = [states[:, :, part] for part in keys]
    return found[0] if len(found) == 1 else torch.cat(found, dim=2)


def _groups(layout: Layout) -> Iterator[tuple[Tensor, int]]:
    """Conversations of similar length: (n, W) their flat columns, −1 padding; and clean slots.

    A conversation's columns stand side by side, the clean ones first.
    """
    document = layout.document.numpy()
    before = (document.max() + 1) * np.arange(len(document))[:, None]
    owner = np.where(document < 0, -1, document + before).ravel()
    starts = np.flatnonzero(np.diff(owner, prepend=-2))
    lengths = np.diff(starts, append=len(owner))
    masked = np.add.reduceat(layout.masked.numpy().ravel().astype(np.int64), starts)
    real = owner[starts] >= 0
    starts, masked, lengths = starts[real], masked[real], lengths[real]
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        alike = int((lengths[order] >= ALIKE * lengths[order[0]]).sum())
        chosen, order = order[:alike], order[alike:]
        start, hidden = starts[chosen, None], masked[chosen, None]
        shown = lengths[chosen, None] - hidden
        place = [np.arange(count.max()) for count in (shown, hidden)]
        columns = [
            np.where(place[0] < shown, start + place[0], -1),
            np.where(place[1] < hidden, start + shown + place[1], -1),
        ]
        yield torch.from_numpy(np.concatenate(columns, axis=1)), int(shown.max())


def _chunks(
    predicate: Predicate, flat: Layout, columns: Tensor, clean: int, heads: int, dtype: torch.dtype
) -> Iterator[Chunk]:
    """The chunks of one group.

    Args:
        predicate: who sees whom; flat: (1, N · S) the batch's columns.
        columns: (n, W) flat column of each slot, the first ``clean`` of them clean.
        heads, dtype: of the mask.
    """
    documents, width = columns.shape
    real = columns >= 0
    there = flat.select(columns.clamp_min(0).flatten()).view(documents, width)
    n = torch.arange(documents)[:, None, None]
    k = torch.arange(width)[None, None]
    edges = [*_cuts(0, clean), *_cuts(clean, width)]
    for start, stop in edges:
        asks = real[:, start:stop, None]
        sees = predicate.test(there, n, torch.arange(start, stop)[None, :, None], k)
        sees = sees & asks & real[:, None]
        sees[:, :, :1] |= ~asks  # a query of the padding sees something, so nothing is NaN
        used = torch.nonzero(sees.any(1).any(0)).flatten()
        keys = [
            slice(int(part[0]), int(part[-1]) + 1)
            for part in (used[used < clean], used[used >= clean])
            if len(part)
        ]
        sees = torch.cat([sees[:, :, part] for part in keys], dim=2)
        mask = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, -torch.inf)
        yield Chunk(start, stop, tuple(keys), mask[:, None].repeat(1, 1, heads, 1))


def _cuts(start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) in parts of about ``CHUNK``, all alike."""
    parts = max(1, round((stop - start) / CHUNK))
    edges = np.linspace(start, stop, parts + 1).astype(int).tolist()
    return [(a, b) for a, b in pairwise(edges) if b > a]


class _Take(torch.autograd.Function):
    """``x[index]`` where every row that matters is taken once, so its gradient is a take too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, dead: Tensor) -> Tensor:
        ctx.save_for_backward(back, dead)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        back, dead = ctx.saved_tensors
        found = grads[0].index_select(0, back)
        return (found.index_fill_(0, dead, 0) if len(dead) else found), None, None, None


def take(x: Tensor, index: Tensor, back: Tensor, dead: Tensor) -> Tensor:
    """(A, E) → (B, E), row ``index[b]`` at b; ``back`` is the inverse, ``dead`` what has none.

    ``index_select``'s own gradient adds row by row, which is several times slower.
    """
    return _Take.apply(x, index, back, dead)  # type: ignore[no-any-return]


# --------------------------------------------------------------------------- FlexAttention


class Flex:
    """FlexAttention over packed rows. Not measured: no GPU was at hand."""

    def __init__(self, predicate: Predicate, layout: Layout) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        rows, width = layout.shape
        self.mask = create_block_mask(
            mask_mod(predicate, layout), rows, None, width, width, device=layout.input_ids.device
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See :class:`Sight`."""
        out = _compiled_flex()(
            query, key, value, block_mask=self.mask, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)  # type: ignore[no-any-return]


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


# --------------------------------------------------------------------------- for a model


def training_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sight: Sight | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as ``transformers`` calls it; calls that bring no ``sight`` are left to SDPA."""
    if sight is None:
        plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return plain(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return sight.attend(query, key, value, scaling), None


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Have a model attend through this module for a while."""
    AttentionInterface.register(NAME, training_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def is_packed(model: PreTrainedModel) -> bool:
    """Whether a model attends through this module."""
    config = getattr(model, "config", None)
    return getattr(config, "_attn_implementation", None) == NAME


def shared_heads(model: PreTrainedModel) -> int:
    """G: query heads that share a key head."""
    heads = int(model.config.num_attention_heads)
    return heads // (getattr(model.config, "num_key_value_heads", None) or heads)
