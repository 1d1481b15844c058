"""The model as decoding needs it: hidden states of a window, then logits where they are read."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import LongTensor, Tensor

from mars.decoding.attention import Window, group_mask, use_rows_attention
from mars.decoding.caches import CursorCache
from mars.decoding.contract import DecodingError, Work

PACK_BELOW = 0.9
"""Windows whose columns are to more than this share wanted are not packed: it would not pay."""

MOST_GRAPHS = 64
"""Programs that may be compiled of a model's body: the methods, caches and numbers of rows that
share it need several each, and what is beyond PyTorch's own limit of 8 runs uncompiled."""


class Backbone:
    """A Llama/Qwen-style causal LM, split into its body and its head.

    Attributes:
        head: the LM head.
        layers, positions, device: of the model.
        bytes_per_column: of keys and values of one column of one row.
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
        self.bytes_per_column = _bytes_per_column(model)
        self.work = Work()
        self._groups = use_rows_attention(model)
        self._dtype = getattr(model, "dtype", torch.float32)
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
        widths: NDArray[np.int64] | None = None,
        full: bool = False,
    ) -> Tensor:
        """Hidden states of windows.

        Args:
            ids: (N, W) tokens; columns: (N, W) the positions they stand at.
            reach: (N, W) the last column each of them sees; None: each sees up to its own.
            used: K, the columns there are keys of: those of ``cache``, or the window's own.
            cache: written in place, or None where the window is the whole sequence.
            first: the slot of the first row.
            widths: (N,) how many columns of each row are wanted, from the left; None: all. What
                is not is padding, and its states mean nothing.
            full: whether every column sees all that are used, so that no mask is needed.

        Returns:
            (N, W, H).
        """
        rows, width = ids.shape
        causal = reach is None and used == width
        packed = self._packing(widths, width, cache)
        window = Window(rows, width, packed, causal)
        mask = None
        if not (causal or full):
            mask = group_mask(columns if reach is None else reach, used, self._groups, self._dtype)
        if packed is not None:
            ids, columns = ids.flatten()[packed][None], columns.flatten()[packed][None]
        extra: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            cache.place(columns, used, first, window)
            extra[self._cache_argument] = cache
        states = self._body(
            input_ids=ids,
            attention_mask=mask,
            # beyond the context there are only padding columns, and nothing reads those
            position_ids=columns.clamp(max=self.positions - 1),
            window=window,
            **extra,
        ).last_hidden_state
        self.work.forwards += 1
        self.work.tokens += ids.numel()
        self.work.keys += rows * width * used
        self.work.cached += rows * used
        if packed is None:
            return states
        padded = states.new_zeros(rows * width, states.shape[-1])
        return padded.index_copy_(0, packed, states[0]).view(rows, width, -1)

    def _packing(
        self, widths: NDArray[np.int64] | None, width: int, cache: CursorCache | None
    ) -> LongTensor | None:
        """(T,) the columns worth forwarding, of N rows padded to W; None: all."""
        if widths is None or cache is None:
            return None
        if widths.sum() > PACK_BELOW * len(widths) * width:
            return None
        places = np.flatnonzero(np.arange(width) < widths[:, None])
        return torch.from_numpy(places).to(self.device)  # type: ignore[return-value]

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D, V) of hidden states (N, D, H): only those that are read."""
        self.work.heads += hidden.shape[0] * hidden.shape[1]
        return self.head(hidden)


def _bytes_per_column(model: Any) -> int:
    config = model.config
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(heads, 1)
    kept = getattr(config, "num_key_value_heads", None) or heads
    dtype = getattr(model, "dtype", torch.float32)
    return 2 * config.num_hidden_layers * kept * size * dtype.itemsize


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
