"""Two streams, blocks, phase, alignment and visibility: what training and decoding share.

One training row is ``[clean | masked]``. The clean stream is the conversation; the masked stream
holds one ``[MASK]`` for each position the loss needs, with the *same position id* as the token it
stands for. Everything the attention mask needs to know of a column is in a :class:`Layout`; the
mask itself is a composition of small predicates over it, which serve the dense boolean mask and
FlexAttention's ``mask_mod`` alike.

Shapes: N rows of a batch, S columns of a row, L tokens of a conversation, B the block size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import BoolTensor, LongTensor, Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORE = -100
"""Label of a column without loss, as cross-entropy ignores it."""


# --------------------------------------------------------------------------- blocks and phase


def block_phase(seed: int, epoch: int, example: int, turn: int, block_size: int) -> int:
    """The phase φ ~ U{0 … B−1} of one response: its first block has B − φ tokens.

    Keyed by (seed, epoch, example, turn), so that it depends on neither batch nor worker.
    """
    return int(np.random.default_rng([seed, epoch, example, turn]).integers(block_size))


def block_ids(turn: Tensor, block_size: int, phases: Sequence[int]) -> LongTensor:
    """Block index of every token of a conversation; a response is tiled from its own phase.

    Args:
        turn: (L,) index of the response a token belongs to, −1 outside responses.
        block_size: B ≥ 1.
        phases: φ of each response, in [0, B).

    Returns:
        (L,) non-decreasing ids. Every token outside responses is a block of its own, so that
        ``block(j) ≤ block(i)`` is plain causality there, and no block spans two turns.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}: it must be at least 1")
    of = turn.numpy()
    place = np.arange(len(of))
    starts = np.ones(len(of), dtype=bool)  # where a response, or the text between two, starts
    starts[1:] = of[1:] != of[:-1]
    offset = place - np.maximum.accumulate(np.where(starts, place, 0))
    phase = np.array([*phases, 0])[of]  # index −1, outside responses, is the appended 0
    opens = (of < 0) | starts | ((offset + phase) % block_size == 0)
    return torch.from_numpy(np.cumsum(opens) - 1)  # type: ignore[return-value]


def stream_block_ids(length: int, block_size: int) -> LongTensor:
    """Blocks counted from the start of the sequence, as the authors released it: (L,) ids."""
    return torch.arange(length) // block_size  # type: ignore[return-value]


# --------------------------------------------------------------------------- layout of columns


@dataclass
class Layout:
    """What the attention mask and the losses know of each column of a batch of rows.

    Attributes:
        input_ids: (N, S) long; token ids, ``[MASK]`` in the masked stream.
        position: (N, S) long; position id, shared by a token and the mask that stands for it.
        block: (N, S) long; block index within its conversation.
        masked: (N, S) bool; True in the masked stream.
        document: (N, S) long; which conversation of the row a column belongs to, −1 padding.
        ar_label: (N, S) long; target of L_AR at this column, or ``IGNORE``.
        mask_label: (N, S) long; target of L_mask at this column, or ``IGNORE``.
        mask_weight: (N, S) float32; weight of its L_mask term (block diffusion: 1/t).
    """

    input_ids: Tensor
    position: Tensor
    block: Tensor
    masked: Tensor
    document: Tensor
    ar_label: Tensor
    mask_label: Tensor
    mask_weight: Tensor

    @property
    def shape(self) -> torch.Size:
        """(N, S)."""
        return self.input_ids.shape

    def to(self, device: torch.device | str) -> Layout:
        """The same layout on another device."""
        return Layout(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def select(self, columns: Tensor) -> Layout:
        """The layout with only the given columns: an index or boolean tensor over S."""
        return Layout(**{f.name: getattr(self, f.name)[:, columns] for f in fields(self)})

    def view(self, *shape: int) -> Layout:
        """The same columns as rows of another shape."""
        return Layout(**{f.name: getattr(self, f.name).view(*shape) for f in fields(self)})


_PADDING = {"document": -1, "ar_label": IGNORE, "mask_label": IGNORE}


def pad_rows(rows: Sequence[Layout], pad_id: int) -> Layout:
    """Stack one-row layouts into a batch, padded on the right to the longest."""
    stacked = {}
    for field in fields(Layout):
        fill = pad_id if field.name == "input_ids" else _PADDING.get(field.name, 0)
        values = [getattr(row, field.name)[0] for row in rows]
        stacked[field.name] = pad_sequence(values, batch_first=True, padding_value=fill)
    return Layout(**stacked)


def pack_row(documents: Sequence[Layout]) -> Layout:
    """Put several one-document rows side by side in one row, told apart by ``document``."""
    joined = {
        f.name: torch.cat([getattr(document, f.name) for document in documents], dim=1)
        for f in fields(Layout)
    }
    joined["document"] = torch.cat(
        [torch.full_like(d.document, i) for i, d in enumerate(documents)], dim=1
    )
    return Layout(**joined)


def ar_layout(ids: Tensor, response: Tensor) -> Layout:
    """The clean stream alone: one row of a conversation for AR SFT.

    Args:
        ids: (L,) token ids.
        response: (L,) bool, the tokens with loss.
    """
    length = len(ids)
    label = torch.full((length,), IGNORE)
    label[:-1] = torch.where(response[1:], ids[1:], IGNORE)
    return Layout(
        input_ids=ids[None],
        position=torch.arange(length)[None],
        block=torch.arange(length)[None],
        masked=torch.zeros(1, length, dtype=torch.bool),
        document=torch.zeros(1, length, dtype=torch.long),
        ar_label=label[None],
        mask_label=torch.full((1, length), IGNORE),
        mask_weight=torch.ones(1, length),
    )


def mars_layout(
    ids: Tensor, turn: Tensor, block_size: int, phases: Sequence[int], mask_id: int
) -> Layout:
    """One MARS row with ``alignment: decoder``, its masked stream trimmed (docs/method.md).

    In a block x_s … x_{s+b−1} the first token is predicted from the clean column s−1, and
    x_{s+o} (o ≥ 1) from the mask at s+o−1; so a block of b tokens needs b − 1 masks.

    Args:
        ids: (L,) token ids; turn: (L,) response index or −1.
        block_size: B; phases: φ of each response; mask_id: the id of ``[MASK]``.
    """
    clean = ar_layout(ids, turn >= 0)
    clean.block = block_ids(turn, block_size, phases)[None]
    return _append_masked(clean, _decoder_columns(clean.block[0], turn), mask_id)


def mars_layout_full(
    ids: Tensor, turn: Tensor, block_size: int, phases: Sequence[int], mask_id: int
) -> Layout:
    """``mars_layout`` untrimmed: every position has a column in the masked stream (2L).

    The slow, obvious reference: response positions hold ``[MASK]``, the others their token.
    """
    clean = ar_layout(ids, turn >= 0)
    clean.block = block_ids(turn, block_size, phases)[None]
    full = _append_masked(clean, torch.arange(len(ids)), mask_id)
    half = len(ids)
    tokens = torch.where(turn >= 0, mask_id, ids)
    full.input_ids[0, half:] = tokens
    predicts = torch.zeros(half, dtype=torch.bool)
    predicts[_decoder_columns(clean.block[0], turn)] = True
    full.mask_label[0, half:][~predicts] = IGNORE
    return full


def _decoder_columns(block: Tensor, turn: Tensor) -> Tensor:
    """Positions that need a mask: response tokens whose successor is in the same block."""
    same = (block[:-1] == block[1:]) & (turn[:-1] >= 0)
    return torch.nonzero(same).flatten()


def _append_masked(clean: Layout, columns: Tensor, mask_id: int) -> Layout:
    """Append masked-stream columns that stand for the clean positions ``columns``.

    L_mask takes each response token once: from the masked column before it where that column is
    in the token's own block, else (first of its block) from the clean column.
    """
    block, label = clean.block[0], clean.ar_label[0]
    first = torch.ones_like(label, dtype=torch.bool)  # does this column's target start a block?
    first[:-1] = block[1:] != block[:-1]
    clean_target = torch.where(first, label, IGNORE)
    masked_target = torch.where(first, IGNORE, label)[columns]
    return _two_streams(
        clean,
        clean_target,
        input_ids=torch.full_like(columns, mask_id),
        columns=columns,
        mask_label=masked_target,
        mask_weight=torch.ones(len(columns)),
    )


def stream_layout(
    ids: Tensor,
    turn: Tensor,
    block_size: int,
    mask_id: int,
    trimmed: bool = True,
) -> Layout:
    """One MARS row with ``alignment: stream``, as the authors released it.

    Blocks are counted from the start of the sequence; every response token x_{i+1} is predicted
    from masked-stream column i, which for the first token of a block is the last mask of the
    block before. Prompt tokens stand in the masked stream as themselves.

    Args:
        ids, turn, block_size, mask_id: as for ``mars_layout``.
        trimmed: keep the masked stream only from the block of the last prompt token before the
            first response on; earlier columns are neither queries with loss nor keys of any.
    """
    clean = ar_layout(ids, turn >= 0)
    clean.block = stream_block_ids(len(ids), block_size)[None]
    label = clean.ar_label[0]
    start = 0
    if trimmed:
        predicting = torch.nonzero(label != IGNORE).flatten()
        last_prompt = int(predicting[0]) if len(predicting) else len(ids) - 1
        start = last_prompt // block_size * block_size
    columns = torch.arange(start, len(ids))
    return _two_streams(
        clean,
        torch.full_like(label, IGNORE),
        input_ids=torch.where(turn >= 0, mask_id, ids)[columns],
        columns=columns,
        mask_label=label[columns],
        mask_weight=torch.ones(len(columns)),
    )


def block_diffusion_layout(
    ids: Tensor,
    turn: Tensor,
    block_size: int,
    mask_id: int,
    noise: Tensor,
    rate: Tensor,
    alignment: str = "stream",
) -> Layout:
    """One block-diffusion (BD3LM) row; blocks have phase 0 (docs/method.md).

    Args:
        ids, turn: (L,); responses already padded to whole blocks.
        noise: (L,) uniform draws; a response token is masked where ``noise < rate``.
        rate: (L,) masking probability t of the token's block; the loss is weighted 1/t.
        alignment: ``stream``: a masked token is predicted from the masked-stream column before
            it (the masked stream also carries the last prompt token of each turn, unmasked, as a
            block of its own); ``own``: from its own column.
    """
    clean = ar_layout(ids, turn >= 0)
    turns = int(turn.max()) + 1 if len(turn) else 0
    clean.block = block_ids(turn, block_size, [0] * turns)[None]
    response = turn >= 0
    hidden = response & (noise < rate)
    target = torch.where(hidden, ids, IGNORE)
    weight = torch.where(hidden, 1.0 / rate.clamp_min(1e-9), torch.ones(()))
    if alignment == "stream":
        needed = response.clone()
        needed[:-1] |= response[1:]
        columns = torch.nonzero(needed).flatten()
        target = torch.cat([target[1:], torch.tensor([IGNORE])])
        weight = torch.cat([weight[1:], torch.ones(1)])
    elif alignment == "own":
        columns = torch.nonzero(response).flatten()
    else:
        raise ValueError(f"alignment {alignment!r}: block diffusion knows 'stream' and 'own'")
    return _two_streams(
        clean,
        torch.full((len(ids),), IGNORE),
        input_ids=torch.where(hidden, mask_id, ids)[columns],
        columns=columns,
        mask_label=target[columns],
        mask_weight=weight[columns].float(),
    )


def _two_streams(
    clean: Layout,
    clean_mask_label: Tensor,
    *,
    input_ids: Tensor,
    columns: Tensor,
    mask_label: Tensor,
    mask_weight: Tensor,
) -> Layout:
    """``[clean | masked]``, the masked columns standing for the clean positions ``columns``."""

    def join(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b[None]], dim=1)

    nothing = torch.full_like(columns, IGNORE)
    return Layout(
        input_ids=join(clean.input_ids, input_ids),
        position=join(clean.position, clean.position[0, columns]),
        block=join(clean.block, clean.block[0, columns]),
        masked=join(clean.masked, torch.ones_like(columns, dtype=torch.bool)),
        document=join(clean.document, torch.zeros_like(columns)),
        ar_label=join(clean.ar_label, nothing),
        mask_label=join(clean_mask_label[None], mask_label),
        mask_weight=join(clean.mask_weight, mask_weight),
    )


# --------------------------------------------------------------------------- visibility


@dataclass(frozen=True)
class Predicate:
    """May column ``q`` of row ``n`` see column ``k``? Predicates compose with ``|`` and ``&``.

    ``test(layout, n, q, k)`` indexes the layout's tensors, so it takes broadcastable index
    tensors (the dense mask) as well as FlexAttention's scalars.
    """

    test: Callable[[Layout, Tensor, Tensor, Tensor], Tensor]

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(lambda x, n, q, k: self.test(x, n, q, k) | other.test(x, n, q, k))

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(lambda x, n, q, k: self.test(x, n, q, k) & other.test(x, n, q, k))


clean_causal = Predicate(
    lambda x, n, q, k: ~x.masked[n, q] & ~x.masked[n, k] & (x.position[n, k] <= x.position[n, q])
)
"""clean → clean: j ≤ i."""

clean_block_causal = Predicate(
    lambda x, n, q, k: ~x.masked[n, q] & ~x.masked[n, k] & (x.block[n, k] <= x.block[n, q])
)
"""clean → clean of block diffusion: block(j) ≤ block(i); prompt tokens are blocks of one."""

masked_to_prefix = Predicate(
    lambda x, n, q, k: x.masked[n, q] & ~x.masked[n, k] & (x.block[n, k] < x.block[n, q])
)
"""masked → clean: every clean j before the query's block, the prompt included."""

within_block = Predicate(
    lambda x, n, q, k: x.masked[n, q] & x.masked[n, k] & (x.block[n, k] == x.block[n, q])
)
"""masked → masked of block diffusion: the same block, both directions."""

causal = Predicate(lambda x, n, q, k: x.position[n, k] <= x.position[n, q])
"""j ≤ i."""

same_document = Predicate(lambda x, n, q, k: x.document[n, q] == x.document[n, k])
"""Packing: conversations of one row do not see each other (padding is document −1)."""

AR = clean_causal & same_document
MARS = (clean_causal | masked_to_prefix | (within_block & causal)) & same_document
BLOCK_DIFFUSION = (clean_block_causal | masked_to_prefix | within_block) & same_document


def dense_mask(predicate: Predicate, layout: Layout) -> BoolTensor:
    """The boolean attention mask for SDPA: (N, 1, S, S), True where a query may look.

    A padding column sees the padding, so that no row of a softmax is empty.
    """
    rows, width = layout.shape
    device = layout.input_ids.device
    n = torch.arange(rows, device=device)[:, None, None]
    q = torch.arange(width, device=device)[None, :, None]
    k = torch.arange(width, device=device)[None, None, :]
    return predicate.test(layout, n, q, k)[:, None]  # type: ignore[return-value]


def mask_mod(predicate: Predicate, layout: Layout) -> Callable[..., Tensor]:
    """The same predicate as FlexAttention's ``mask_mod(batch, head, q, k)``."""
    return lambda batch, head, q, k: predicate.test(layout, batch, q, k)
