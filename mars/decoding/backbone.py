"""The model as decoding needs it: hidden states of a window, then logits where they are read."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import LongTensor, Tensor

from mars.decoding.caches import CursorCache
from mars.decoding.contract import DecodingError, Work


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
        _refuse_windows(config, self.positions)
        accepted = inspect.signature(self._body.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        if compile:
            mode = "reduce-overhead" if self.device.type == "cuda" else None
            self._body = torch.compile(self._body, mode=mode, dynamic=mode is None)

    def hidden(
        self,
        ids: LongTensor,
        columns: LongTensor,
        reach: LongTensor,
        used: int,
        cache: CursorCache | None,
        first: int = 0,
    ) -> Tensor:
        """Hidden states of a window.

        Args:
            ids: (N, W) tokens; columns: (N, W) the positions they stand at.
            reach: (N, W) the last column each of them sees.
            used: K, the columns there are keys of: those of ``cache``, or the window's own.
            cache: written in place, or None where the window is the whole sequence.
            first: the slot of the first row.

        Returns:
            (N, W, H).
        """
        keys = torch.arange(used, device=ids.device)
        visible = keys[None, None, None, :] <= reach[:, None, :, None]
        extra: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            cache.place(columns, used, first)
            extra[self._cache_argument] = cache
        output = self._body(
            input_ids=ids,
            attention_mask=visible,
            # beyond the context there are only padding columns, and nothing reads those
            position_ids=columns.clamp(max=self.positions - 1),
            **extra,
        )
        self.work.forwards += 1
        self.work.tokens += ids.numel()
        self.work.keys += ids.numel() * used
        self.work.cached += len(ids) * used
        return output.last_hidden_state

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
