"""Attention in training: every conversation by itself, and no key that a query cannot see.

Registered through ``transformers``' attention interface, so no model code is patched. Linear
layers run over packed rows; only inside attention are columns put together by conversation. Two
ways, from the same predicates (``mars.streams``):

* :class:`Documents` (CPU): conversations of similar length are laid side by
  side, ``(n, clean slots | masked slots)``, and their queries are taken in chunks, each with the
  keys that any of its queries sees. SDPA computes all pairs of a call, whether masked, causal or
  not, so pairs are saved by not asking for them.
* :class:`Flex` (CUDA): FlexAttention over the rows as they are, with a block mask built once a
  batch. FlexAttention has no backward on CPU; tests compile its forward there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mars.streams import Layout, Predicate, mask_mod

NAME = "mars_training"
CHUNK = 128
MASKED_CHUNK = 64
"""Queries of one call: fewer skip more pairs that nobody sees, more make better use of a call.

Masks see few other masks, so more is skipped among them."""
FLEX_CAPABILITY = (8, 0)
"""Of GPUs on which FlexAttention's kernels compile."""
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
        return Flex(predicate, layout, dtype)
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

    def asked(self, states: Tensor, key: Tensor) -> Tensor:
        """(n, G · H, W, D) → (n, H, G · queries, D): heads that share keys stand side by side."""
        chosen = states[:, :, self.start : self.stop]
        return chosen.reshape(len(chosen), key.shape[1], -1, chosen.shape[3])

    def seen(self, states: Tensor) -> Tensor:
        """(n, H, W, D) → (n, H, keys, D)."""
        found = [states[:, :, part] for part in self.keys]
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)

    def add(self, total: Tensor, made: Tensor) -> None:
        """Add (n, H, keys, D) to the slots of (n, H, W, D) that the keys stand for."""
        sizes = [part.stop - part.start for part in self.keys]
        for part, piece in zip(self.keys, made.split(sizes, dim=2), strict=True):
            total[:, :, part] += piece


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
        self.dtype = dtype
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

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that are computed, hidden ones among them."""
        return sum(
            group.documents * (chunk.stop - chunk.start) * chunk.mask.shape[-1]
            for group in self.groups
            for chunk in group.chunks
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See :class:`Sight`."""
        rows, heads, width, size = query.shape
        states = (
            x.to(self.dtype).transpose(1, 2).reshape(rows * width, -1, size)  # mostly views
            for x in (query, key, value)
        )
        made = _Attend.apply(*states, self, scale).view(rows, width, heads, size)
        return made.to(value.dtype)  # type: ignore[no-any-return]

    def views(self, *slots: Tensor) -> Iterator[tuple[Chunk, list[Tensor]]]:
        """Each chunk, and its group's (n, heads, W, D) view of every (slots, heads, D) tensor."""
        at = 0
        for group in self.groups:
            size = group.documents * group.width
            views = [
                x[at : at + size].view(group.documents, group.width, *x.shape[1:]).transpose(1, 2)
                for x in slots
            ]
            at += size
            for chunk in group.chunks:
                yield chunk, views


class _Attend(torch.autograd.Function):
    """(N · S, heads, D) queries, keys and values → outputs, by conversation.

    SDPA's own kernels, called chunk by chunk. A step holds the states once and no copy of a
    chunk's keys; gradients are added in place, where autograd would fill and add whole tensors.
    Taking columns to slots and back is a permutation but for padding, so the gradient of a take
    is a take.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sight: Documents, scale: float | None
    ) -> Tensor:
        query, key, value = (x.index_select(0, sight.column) for x in (query, key, value))
        out = torch.empty_like(query)
        sums = []
        for chunk, (q, k, v, o) in sight.views(query, key, value, out):
            made, logsumexp = _FLASH(
                chunk.asked(q, k), chunk.seen(k), chunk.seen(v), attn_mask=chunk.mask, scale=scale
            )
            o[:, :, chunk.start : chunk.stop] = made.view(len(q), q.shape[1], -1, q.shape[3])
            sums.append(logsumexp)
        back = out.index_select(0, sight.slot)
        ctx.save_for_backward(query, key, value, back, *sums)
        ctx.sight, ctx.scale = sight, scale
        return back

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sight: Documents = ctx.sight
        query, key, value, back, *sums = ctx.saved_tensors
        out = back.index_select(0, sight.column)
        given = grads[0].index_select(0, sight.column).index_fill_(0, sight.padded_slots, 0)
        to_query, to_key, to_value = (torch.zeros_like(x) for x in (query, key, value))
        held = (query, key, value, out, given, to_query, to_key, to_value)
        for (chunk, (q, k, v, o, g, dq, dk, dv)), logsumexp in zip(
            sight.views(*held), sums, strict=True
        ):
            made = _FLASH_BACKWARD(
                chunk.asked(g, k), chunk.asked(q, k), chunk.seen(k), chunk.seen(v),
                chunk.asked(o, k), logsumexp, 0.0, False, attn_mask=chunk.mask, scale=ctx.scale,
            )  # fmt: skip
            dq[:, :, chunk.start : chunk.stop] = made[0].reshape(len(q), q.shape[1], -1, q.shape[3])
            chunk.add(dk, made[1])
            chunk.add(dv, made[2])
        taken = (x.index_select(0, sight.slot) for x in (to_query, to_key, to_value))
        found = (x.index_fill_(0, sight.padded_columns, 0) for x in taken)
        return *found, None, None


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
    edges = [*_cuts(0, clean, CHUNK), *_cuts(clean, width, MASKED_CHUNK)]
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


def _cuts(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """[start, stop) in parts of about ``size``, all alike."""
    parts = max(1, round((stop - start) / size))
    edges = np.linspace(start, stop, parts + 1).astype(int).tolist()
    return [(a, b) for a, b in pairwise(edges) if b > a]


# --------------------------------------------------------------------------- FlexAttention


class Flex:
    """FlexAttention over packed rows. Not measured: no GPU was at hand.

    The block mask is made once a batch, here, and all layers use it.
    """

    def __init__(self, predicate: Predicate, layout: Layout, dtype: torch.dtype) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        self.dtype = dtype
        rows, width = layout.shape
        self.mask = create_block_mask(
            mask_mod(predicate, layout), rows, None, width, width, device=layout.input_ids.device
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See :class:`Sight`."""
        states = (x.to(self.dtype) for x in (query, key, value))  # autocast leaves some wider
        out = _compiled_flex()(*states, block_mask=self.mask, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).to(value.dtype)  # type: ignore[no-any-return]


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


# --------------------------------------------------------------------------- for a model


def kind(device: torch.device) -> str:
    """How training attends on a device: documents, flex, or dense (the reference, on old GPUs)."""
    if device.type != "cuda":
        return "documents"
    able = torch.cuda.get_device_capability(device) >= FLEX_CAPABILITY and find_spec("triton")
    return "flex" if able else "dense"


def packs(device: torch.device) -> bool:
    """Whether training attends by conversation there, and not with a dense mask."""
    return kind(device) != "dense"


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
