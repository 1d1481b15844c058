"""The model as decoding needs it: hidden states of a window, then logits where they are read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import LongTensor, Tensor

from mars.decoding.attention import Part, Window, group_mask, use_rows_attention
from mars.decoding.caches import CursorCache
from mars.decoding.contract import DecodingError, Work

PACK_BELOW = 0.9
"""Windows whose columns are to more than this share wanted are not packed: it would not pay."""

MOST_GRAPHS = 64
"""Programs that may be compiled of a model's body: the methods, caches and numbers of rows that
share it need several each, and what is beyond PyTorch's own limit of 8 runs uncompiled."""


@dataclass(frozen=True)
class Spans:
    """Where the windows of N rows lie.

    Attributes:
        start, stop: (N,) the first column of each, and the one after its last; what a window is
            padded to beyond is not wanted, and its states mean nothing.
        apart: the rows before this one and those from it on attend apart; 0: all together.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    apart: int = 0

    @property
    def widths(self) -> NDArray[np.int64]:
        """(N,)."""
        return self.stop - self.start

    @property
    def width(self) -> int:
        """W, the widest."""
        return int(self.widths.max())

    @property
    def used(self) -> int:
        """K, the columns there are keys of, padding included."""
        if self.apart:
            halves = slice(0, self.apart), slice(self.apart, None)
            return max(Spans(self.start[half], self.stop[half]).used for half in halves)
        return int(self.start.max()) + self.width

    @property
    def level(self) -> bool:
        """Whether all begin at one column."""
        return bool((self.start == self.start[0]).all())

    @property
    def causal(self) -> bool:
        """Whether all begin at column 0."""
        return not self.start.any()

    @property
    def places(self) -> NDArray[np.int64]:
        """(T,) which of (N · W) columns are wanted."""
        return np.flatnonzero(np.arange(self.width) < self.widths[:, None])

    def packing(self, cache: CursorCache | None) -> NDArray[np.int64] | None:
        """(T,) the columns to forward, of N rows padded to W; None: all."""
        if cache is None:
            return None
        wanted, all_columns = int(self.widths.sum()), len(self.start) * self.width
        return self.places if self.apart or wanted <= PACK_BELOW * all_columns else None


class Backbone:
    """A Llama/Qwen-style causal LM, split into its body and its head.

    Attributes:
        head: the LM head.
        layers, positions, device: of the model.
        vocabulary: rows of its embedding; None: it has none.
        bytes_per_column: of keys and values of one column of one row, on each device that has
            layers.
        work: what was computed since it was last set to ``Work()``.
    """

    def __init__(self, model: Any, *, positions: int | None = None, compile: bool = False) -> None:
        """Split a model.

        Args:
            model: of ``transformers``, in eval mode.
            positions: context limit; None: the model's own.
            compile: compile the body with ``torch.compile`` (on CUDA with CUDA graphs).
        """
        config = model.config
        self._body = model.base_model
        self.head = model.get_output_embeddings()
        self.layers: int = config.num_hidden_layers
        self.positions: int = positions or config.max_position_embeddings
        self.device: torch.device = model.device
        self.vocabulary = _vocabulary(model)
        self.bytes_per_column = _bytes_per_column(model)
        self.work = Work()
        self._groups = use_rows_attention(model)
        self._dtype = getattr(model, "dtype", torch.float32)
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=self._dtype, device=self.device)
        _refuse_windows(config, self.positions)
        accepted = inspect.signature(self._body.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        if compile:
            mode = "reduce-overhead" if self.device.type == "cuda" else None
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, MOST_GRAPHS)
            # windows and the columns in use differ from step to step: no program for each size
            self._body = torch.compile(self._body, mode=mode, dynamic=True)

    def hidden(
        self,
        ids: LongTensor,
        columns: LongTensor,
        reach: LongTensor | None,
        used: int,
        cache: CursorCache | None,
        first: int = 0,
    ) -> Tensor:
        """Hidden states of windows of one width.

        Args:
            ids: (N, W) tokens; columns: (N, W) the positions they stand at.
            reach: (N, W) the last column each of them sees; None: each sees up to its own.
            used: K, the columns there are keys of: those of ``cache``, or the window's own.
            cache: written in place, or None where the window is the whole sequence.
            first: the slot of the first row.

        Returns:
            (N, W, H).
        """
        rows, width = ids.shape
        causal = reach is None and used == width
        mask = None
        if not causal:
            mask = group_mask(columns if reach is None else reach, used, self._groups, self._dtype)
        self._count(rows, width, used)
        return self._run(ids, columns, used, mask, cache, first, Window(rows, width, None, causal))

    def read(
        self,
        ids: LongTensor,
        columns: LongTensor,
        seen: LongTensor,
        spans: Spans,
        cache: CursorCache | None,
        first: int = 0,
    ) -> Tensor:
        """The hidden states that are read of windows of any widths; each column sees up to its own.

        Args:
            ids: (N, W) tokens; columns: (N, W) the positions they stand at; beyond a row's width
                both are padding.
            seen: (N, D) which columns of each window are read, from 0; one beyond a row's width
                gives some state that means nothing.
            spans: where each row's window lies.
            cache, first: as in ``hidden``.

        Returns:
            (N, D, H).
        """
        rows, width = ids.shape
        window, mask = self._window(columns, spans, cache)
        if window.packed is not None:
            ids, columns = (
                ids.flatten()[window.packed][None],
                columns.flatten()[window.packed][None],
            )  # type: ignore[assignment]
        states = self._run(ids, columns, spans.used, mask, cache, first, window)
        if window.packed is None:
            if seen.shape[1] == width == 1:
                return states  # nothing but the column that each row predicts from
            places = seen.clamp(0, width - 1)
        else:
            widths = torch.from_numpy(spans.widths).to(self.device)[:, None]
            places = widths.cumsum(0) - widths + torch.minimum(seen, widths - 1).clamp(min=0)
            states, places = states.expand(rows, -1, -1), places.clamp(max=ids.shape[1] - 1)
        return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))

    def _window(
        self, columns: LongTensor, spans: Spans, cache: CursorCache | None
    ) -> tuple[Window, Tensor | None]:
        """How rows share a forward, and the mask of all of them where they attend together."""
        rows, width = columns.shape
        places = spans.packing(cache)
        if places is None or not spans.apart:
            packed = None if places is None else torch.from_numpy(places).to(self.device)
            causal, full = spans.causal, width == 1 and spans.level and packed is None
            mask = None
            if not (causal or full):
                mask = group_mask(columns, spans.used, self._groups, self._dtype)
            self._count(rows, width, spans.used)
            return Window(rows, width, packed, causal), mask  # type: ignore[arg-type]
        parts, begin = [], 0
        for part in (slice(0, spans.apart), slice(spans.apart, rows)):
            mine = Spans(spans.start[part], spans.stop[part])
            if not mine.width:
                continue
            tokens = slice(begin, begin + int(mine.widths.sum()))
            begin = tokens.stop
            packed = torch.from_numpy(mine.places).to(self.device)
            mask = None
            if not mine.causal:
                at = columns[part, : mine.width]
                mask = group_mask(at, mine.used, self._groups, self._dtype)  # type: ignore[arg-type]
            window = Window(len(mine.start), mine.width, packed, mine.causal)  # type: ignore[arg-type]
            parts.append(Part(part, tokens, mine.used, mask, window))
            self._count(len(mine.start), mine.width, mine.used)
        packed = torch.from_numpy(places).to(self.device)
        return Window(rows, width, packed, parts=tuple(parts)), None  # type: ignore[arg-type]

    def _count(self, rows: int, width: int, used: int) -> None:
        self.work.keys += rows * width * used
        self.work.cached += rows * used

    def _run(
        self,
        ids: LongTensor,
        columns: LongTensor,
        used: int,
        mask: Tensor | None,
        cache: CursorCache | None,
        first: int,
        window: Window,
    ) -> Tensor:
        extra: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            cache.place(columns, used, first, window)
            extra[self._cache_argument] = cache
        if window.parts:  # each brings its own; the model must not make one
            mask = self._no_mask
        self.work.forwards += 1
        self.work.tokens += ids.numel()
        states: Tensor = self._body(
            input_ids=ids,
            attention_mask=mask,
            # beyond the context there are only padding columns, and nothing reads those
            position_ids=columns.clamp(max=self.positions - 1),
            window=window,
            **extra,
        ).last_hidden_state
        return states.to(self.device)  # the last layers may lie on another device than the first

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D, V) of hidden states (N, D, H): only those that are read.

        In the model's dtype: what reads them casts to float32, as ``generate`` of transformers
        does, so that a bfloat16 model's most likely token is the same at τ = 1.
        """
        self.work.heads += hidden.shape[0] * hidden.shape[1]
        logits: Tensor = self.head(hidden)
        return logits.to(self.device)  # the head may lie on another device than the first layer


def _vocabulary(model: Any) -> int | None:
    if not hasattr(model, "get_input_embeddings"):
        return None
    return int(model.get_input_embeddings().weight.shape[0])


def _bytes_per_column(model: Any) -> dict[torch.device, int]:
    config = model.config
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(heads, 1)
    kept = getattr(config, "num_key_value_heads", None) or heads
    layer = 2 * kept * size * getattr(model, "dtype", torch.float32).itemsize
    places = [next(one.parameters()).device for one in getattr(model.base_model, "layers", ())]
    return {device: layer * places.count(device) for device in dict.fromkeys(places)}


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
