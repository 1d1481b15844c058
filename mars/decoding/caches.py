"""Key–value caches: where keys are stored, and which columns a step recomputes.

Every row starts at physical column 0, so a column is a position. A step forwards a *window* of
columns of each row, from ``row.cached`` on; it writes its keys at those columns, and a query sees
the columns up to its own reach (its own column, where attention is causal). Whatever an earlier
step left further right is out of sight until it is overwritten: nothing is cropped or copied.

A *policy* says how far ``row.cached`` advances, and so what the next step recomputes:

========== ==============================================================================
cursor     everything accepted before the step is cached; no row ever waits
block      the prefix is frozen while the rows fill a block of B_cache tokens each
none       nothing is cached: each step recomputes the whole sequence (the reference)
========== ==============================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import LongTensor, Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mars.decoding.contract import DecodingError, Generation, Request


@dataclass(slots=True)
class Row:
    """Host-side state of a row that is being decoded.

    Attributes:
        index: its place among the requests.
        request, generation: what was asked, and what came of it so far.
        length: accepted tokens, the prompt included.
        end: the length at which budget or context is used up.
        tau: its threshold; may change between steps.
        cached: the columns before this one hold keys of accepted tokens.
        block_end: where its current block of the block cache ends.
    """

    index: int
    request: Request
    generation: Generation
    length: int
    end: int
    tau: float
    cached: int = 0
    block_end: int = 0


# --------------------------------------------------------------------------- storage


class CursorLayer(CacheLayerMixin):
    """Preallocated keys and values of one layer: (R slots, heads, C columns, head size).

    A head's columns lie side by side: attention reads them all, a step writes a few (measured
    on a CPU, against columns before heads: 35 % off attention for one query, 10 % for seven).
    """

    def __init__(self, cache: CursorCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the shapes the model turns out to have; zeros, so that no key is NaN."""
        slots, columns = self._cache.slots, self._cache.columns
        for name, states in (("keys", key_states), ("values", value_states)):
            _, heads, _, size = states.shape
            setattr(self, name, states.new_zeros(slots, heads, columns, size))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write a window at its columns; return the columns in use, (N, heads, K, head size)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, buffer: Tensor, states: Tensor) -> Tensor:
        rows, heads, _, size = states.shape
        places = self._cache.places(heads)
        buffer.view(-1, size).index_copy_(0, places, states.reshape(-1, size))
        return buffer[:rows, :, : self._cache.used]

    def move(self, source: LongTensor, target: LongTensor) -> None:
        """Copy the used columns of some slots onto others."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                used = buffer[:, :, : self._cache.used]
                used[target] = used[source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys a mask covers."""
        del query_length
        return self._cache.used, 0

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self._cache.used

    def get_max_length(self) -> int:
        """Columns there are."""
        return self._cache.columns


class CursorCache(Cache):
    """``transformers`` cache whose rows write at their own columns, in place."""

    def __init__(self, layers: int, slots: int, columns: int) -> None:
        self.slots, self.columns = slots, columns
        self.used = 0
        self._written = torch.empty(0, 0, dtype=torch.long)
        self._places: dict[int, Tensor] = {}
        super().__init__(layers=[CursorLayer(self) for _ in range(layers)])

    def place(self, columns: LongTensor, used: int) -> None:
        """Say where the next forward writes: (N, W) columns; the first ``used`` are read."""
        self._written, self.used = columns, used
        self._places.clear()

    def places(self, heads: int) -> Tensor:
        """Where the states of all rows, heads and columns go in a flat buffer: (N · heads · W,)."""
        if heads not in self._places:
            first = torch.arange(len(self._written) * heads, device=self._written.device)
            flat = first.view(-1, heads, 1) * self.columns + self._written[:, None]
            self._places[heads] = flat.flatten()
        return self._places[heads]

    def move(self, source: LongTensor, target: LongTensor) -> None:
        """Copy slots onto others, in every layer."""
        for layer in self.layers:
            layer.move(source, target)  # type: ignore[union-attr]


# --------------------------------------------------------------------------- policies


class Cursor:
    """Every accepted token's keys are kept as soon as they are computed."""

    stores = True

    def __init__(self, block: int | None = None) -> None:
        if block is not None:
            raise DecodingError(
                f"cache_block is {block}, but only the caches block and none cut drafts at block "
                "ends: leave it out, or set cache: block"
            )

    def begin(self, rows: Sequence[Row]) -> None:
        """Called before each step."""

    def room(self, row: Row) -> int:
        """How many tokens the row may accept this step; 0 where it waits."""
        return row.end - row.length

    def uncached(self, width: int) -> int:
        """The most accepted tokens of a row that a step may recompute, prefill aside."""
        return width

    def advance(self, row: Row, known: int) -> None:
        """Called after each step: the window's columns before ``known`` held accepted tokens."""
        row.cached = known


class Recompute(Cursor):
    """No cache; with ``cache_block``, drafts are cut as the block cache cuts them."""

    stores = False

    def __init__(self, block: int | None = None) -> None:
        self._block = block

    def begin(self, rows: Sequence[Row]) -> None:
        """Each row enters its next block by itself."""
        if self._block is not None:
            for row in rows:
                if row.length >= row.block_end:
                    row.block_end = row.length + self._block

    def room(self, row: Row) -> int:
        """Up to the end of the block, where there are blocks."""
        end = row.end if self._block is None else min(row.end, row.block_end)
        return end - row.length

    def uncached(self, width: int) -> int:
        """Rows start together, so that none reaches further than the longest."""
        return 0

    def advance(self, row: Row, known: int) -> None:
        """Nothing is kept."""


class Block(Cursor):
    """The paper's block cache: prefix frozen, rows wait for each other at the end of a block.

    A step recomputes the tokens its block holds so far. Rows that have filled theirs idle in the
    batch. When all have, one forward over the full block writes it, and its last position yields
    the first tokens of the next block, as prefill does for the first: no forward is spent on
    writing alone.
    """

    def __init__(self, block: int | None = None) -> None:
        if block is None:
            raise DecodingError("cache: block needs its size: set cache_block, e.g. 32")
        self._block = block
        self._writing = False

    def begin(self, rows: Sequence[Row]) -> None:
        """Open the next block once every row has filled its own."""
        self._writing = all(row.length >= row.block_end for row in rows)
        if self._writing:
            for row in rows:
                row.block_end = row.length + self._block

    def room(self, row: Row) -> int:
        """Up to the end of the block."""
        return min(row.end, row.block_end) - row.length

    def uncached(self, width: int) -> int:
        """A whole block, and at its end what was accepted with it."""
        return self._block + width

    def advance(self, row: Row, known: int) -> None:
        """Freeze the block that this step wrote."""
        if self._writing:
            row.cached = known


POLICIES: dict[str, type[Cursor]] = {"cursor": Cursor, "block": Block, "none": Recompute}


# --------------------------------------------------------------------------- the model


class Backbone:
    """A Llama/Qwen-style causal LM, split where decoding needs it: hidden states, then logits."""

    def __init__(self, model: Any) -> None:
        self._body = model.base_model
        self.head = model.get_output_embeddings()
        self.layers: int = model.config.num_hidden_layers
        self.positions: int = model.config.max_position_embeddings
        self.device = model.device
        _refuse_windows(model.config, self.positions)
        accepted = inspect.signature(self._body.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"

    def hidden(
        self,
        ids: LongTensor,
        columns: LongTensor,
        reach: LongTensor,
        used: int,
        cache: CursorCache | None,
    ) -> Tensor:
        """Hidden states of a window.

        Args:
            ids: (N, W) tokens; columns: (N, W) the positions they stand at.
            reach: (N, W) the last column each of them sees.
            used: K, the columns there are keys of: those of ``cache``, or the window's own.
            cache: written in place, or None where the window is the whole sequence.

        Returns:
            (N, W, H).
        """
        keys = torch.arange(used, device=ids.device)
        visible = keys[None, None, None, :] <= reach[:, None, :, None]
        extra: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            cache.place(columns, used)
            extra[self._cache_argument] = cache
        output = self._body(
            input_ids=ids,
            attention_mask=visible,
            # beyond the context there are only padding columns, and nothing reads those
            position_ids=columns.clamp(max=self.positions - 1),
            **extra,
        )
        return output.last_hidden_state


def _refuse_windows(config: Any, positions: int) -> None:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in kinds if kinds else window is not None
    if windowed and window is not None and window < positions:
        raise DecodingError(
            f"the model attends within a sliding window of {window} tokens, which these caches "
            "do not have: use a model with full attention in every layer"
        )
    if kinds and set(kinds) - {"full_attention", "sliding_attention"}:
        raise DecodingError(
            f"the model has layers of the kinds {sorted(set(kinds))}: only full attention is known"
        )
