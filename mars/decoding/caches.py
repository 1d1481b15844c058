"""Key–value caches: where keys are stored, and which columns a step recomputes.

Every row starts at physical column 0, so a column is a position. A step forwards a *window* of
columns of each row, from ``cached`` on; it writes its keys at those columns, and a query sees
the columns up to its own reach (its own column, where attention is causal). Whatever an earlier
step left further right is out of sight until it is overwritten: nothing is cropped or copied.

A *policy* says how far ``cached`` advances, and so what the next step recomputes:

========== ==============================================================================
cursor     everything accepted before the step is cached; no row ever waits
block      the prefix is frozen while the rows fill a block of B_cache tokens each
none       nothing is cached: each step recomputes the whole sequence (the reference)
========== ==============================================================================

Policies work on the state of rows (``rows.ROW``), a field at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import LongTensor, Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mars.decoding.attention import Window
from mars.decoding.contract import DecodingError

Rows = NDArray[np.void]

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
        _, heads, _, size = states.shape
        cache = self._cache
        places = cache.places(heads).to(buffer.device)  # layers may lie on several devices
        buffer.view(-1, size).index_copy_(0, places, states.reshape(-1, size))
        return buffer[cache.first : cache.first + cache.rows, :, : cache.used]

    def move(self, source: LongTensor, target: LongTensor) -> None:
        """Copy some slots onto others."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                used = buffer[:, :, : self._cache.reached]
                used[target.to(buffer.device)] = used[source.to(buffer.device)]

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
    """``transformers`` cache whose rows write at their own columns, in place.

    Attributes:
        first: the slot of the first row of the next forward; rows: how many there are.
        used: how many columns the next forward reads.
        reached: how many columns have ever been read or written.
    """

    def __init__(self, layers: int, slots: int, columns: int) -> None:
        self.slots, self.columns = slots, columns
        self.first = self.rows = self.used = self.reached = 0
        self._written = torch.empty(0, 0, dtype=torch.long)
        self._window = Window(0, 0)
        self._places: dict[int, Tensor] = {}
        super().__init__(layers=[CursorLayer(self) for _ in range(layers)])

    def place(self, columns: LongTensor, used: int, first: int, window: Window) -> None:
        """Say where the next forward writes.

        Args:
            columns: (N, W) or packed (1, T), of the slots from ``first`` on.
            used: the first ``used`` columns are read.
            first: a slot.
            window: how many rows there are, and whether packed.
        """
        self._written, self._window = columns, window
        self.used, self.first, self.rows = used, first, window.rows
        self.reached = max(self.reached, used)
        self._places.clear()

    def places(self, heads: int) -> Tensor:
        """Where states (N, heads, W) or packed (1, heads, T) go in a flat buffer: (their number,).

        A column of a head of a slot is a line of that buffer.
        """
        if heads not in self._places:
            device, packed = self._written.device, self._window.packed
            slot = torch.arange(self.rows, device=device)[:, None]
            if packed is not None:
                slot = torch.div(packed, self._window.width, rounding_mode="floor")[None]
            line = (slot + self.first)[:, None] * heads + torch.arange(heads, device=device)[
                :, None
            ]
            self._places[heads] = (line * self.columns + self._written[:, None]).flatten()
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

    def admits(self, rows: Rows) -> bool:
        """Whether new rows may join those in flight."""
        return True

    def begin(self, rows: Rows) -> None:
        """Called before each round, with all rows in flight."""

    def room(self, rows: Rows) -> NDArray[np.int64]:
        """(N,) how many tokens each row may accept; 0 where it waits."""
        return rows["end"] - rows["length"]

    def uncached(self, width: int) -> int:
        """The most accepted tokens of a row that a step may recompute, prefill aside."""
        return width

    def advance(self, rows: Rows, known: NDArray[np.int64], took: NDArray[np.bool_]) -> None:
        """Called after each step, (N,) each: its windows' columns before ``known`` held accepted
        tokens, of the rows that ``took`` part.
        """
        rows["cached"] = np.where(took, known, rows["cached"])


class Recompute(Cursor):
    """No cache; with ``cache_block``, drafts are cut as the block cache cuts them."""

    stores = False

    def __init__(self, block: int | None = None) -> None:
        self._block = block

    def begin(self, rows: Rows) -> None:
        """Each row enters its next block by itself."""
        if self._block is not None:
            full = rows["length"] >= rows["block_end"]
            rows["block_end"] = np.where(full, rows["length"] + self._block, rows["block_end"])

    def room(self, rows: Rows) -> NDArray[np.int64]:
        """Up to the end of the block, where there are blocks."""
        cut = rows["end"] if self._block is None else np.minimum(rows["end"], rows["block_end"])
        return cut - rows["length"]

    def advance(self, rows: Rows, known: NDArray[np.int64], took: NDArray[np.bool_]) -> None:
        """Nothing is kept."""


class Block(Cursor):
    """The paper's block cache: prefix frozen, rows wait for each other at the end of a block.

    A step recomputes the tokens its block holds so far. Rows that have filled theirs wait. When
    all have, one forward over the full block writes it, and its last position yields the first
    tokens of the next block, as prefill does for the first: no forward is spent on writing alone.
    """

    def __init__(self, block: int | None = None) -> None:
        if block is None:
            raise DecodingError("cache: block needs its size: set cache_block, e.g. 32")
        self._block = block

    def admits(self, rows: Rows) -> bool:
        """At the end of a block, so that all rows stay in step."""
        return bool((rows["length"] >= rows["block_end"]).all())

    def begin(self, rows: Rows) -> None:
        """Open the next block once every row has filled its own."""
        if (rows["length"] >= rows["block_end"]).all():
            rows["writing"] = True
            rows["block_end"] = rows["length"] + self._block

    def room(self, rows: Rows) -> NDArray[np.int64]:
        """Up to the end of the block."""
        return np.minimum(rows["end"], rows["block_end"]) - rows["length"]

    def uncached(self, width: int) -> int:
        """A whole block, and at its end what was accepted with it."""
        return self._block + width

    def advance(self, rows: Rows, known: NDArray[np.int64], took: NDArray[np.bool_]) -> None:
        """Freeze the block that this step wrote."""
        wrote = took & rows["writing"]
        rows["cached"] = np.where(wrote, known, rows["cached"])
        rows["writing"] &= ~took


POLICIES: dict[str, type[Cursor]] = {"cursor": Cursor, "block": Block, "none": Recompute}
