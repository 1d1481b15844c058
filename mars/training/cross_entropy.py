"""Cross-entropy of a linear head without holding the logits of all positions at once.

With a vocabulary of 150,000 the logits are the largest thing in a training step. Where those of
all positions are more than ``LOGITS`` allows, they are made chunk by chunk, and made again in the
backward pass. On CUDA, Liger's fused kernel takes their place where it is installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

LOGITS = {"cpu": 2**24, "cuda": 2**27}
"""Logits held at once, by device: fewer positions are made in one go.

64 MiB in float32 on a CPU, where more only leave its caches. 512 MiB on a GPU: of Qwen's vocabulary
883 positions, enough to compute more than to read weights (an H100 does 300 FLOP while it reads a
byte); with the softmax and what is cast, a chunk holds under 2 GiB."""


def weighted_sums(
    hidden: Tensor, head: nn.Module, target: Tensor, weights: Tensor, limit: int | None = None
) -> Tensor:
    """Σ_p weights[k, p] · −log p(target_p | hidden_p), for every k.

    Args:
        hidden: (P, E) last hidden states; head: the language-model head.
        target: (P,) token ids; weights: (K, P), of the sums wanted.
        limit: logits held at once; None: as ``LOGITS`` says.

    Returns:
        (K,) float32, or wider where the model is.
    """
    plain = isinstance(head, nn.Linear)
    if plain and hidden.is_cuda and has_liger() and bool(((weights == 0) | (weights == 1)).all()):
        return _fused_sums(hidden, head, target, weights)
    limit = limit or LOGITS.get(hidden.device.type, LOGITS["cpu"])
    if plain and target.numel() * head.out_features > limit:
        size = max(1, limit // head.out_features)
        losses = _Chunked.apply(hidden, head.weight, head.bias, target, size)
    else:
        losses = cross_entropy(_wide(head(hidden)), target, reduction="none")
    return (weights.to(losses.dtype) * losses).sum(1)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


class _Chunked(torch.autograd.Function):
    """(P,) losses; logits of ``size`` positions at a time, in the backward pass once more."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, size: int
    ) -> Tensor:
        kind = hidden.device.type
        cast = torch.is_autocast_enabled(kind)
        ctx.dtype = torch.get_autocast_dtype(kind) if cast else hidden.dtype
        ctx.kind, ctx.size = kind, size
        ctx.save_for_backward(hidden, weight, bias, target)
        losses = [
            cross_entropy(logits, wanted, reduction="none")
            for _, logits, wanted in _parts(ctx, hidden, weight, bias, target)
        ]
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden)
        # FSDP brings weights of low precision, in which a sum over many chunks would lose bits
        wide = torch.promote_types(weight.dtype, torch.float32)
        to_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        with torch.autocast(ctx.kind, enabled=False):
            cast = weight.to(ctx.dtype)
            for part, logits, wanted in _parts(ctx, hidden, weight, bias, target):
                slope = logits.softmax(-1)
                slope[torch.arange(len(wanted), device=wanted.device), wanted] -= 1
                slope = (slope * grads[0][part, None]).to(ctx.dtype)
                to_hidden[part] = (slope @ cast).to(hidden.dtype)
                if to_weight is not None:
                    to_weight += slope.T @ hidden[part].to(ctx.dtype)
                if to_bias is not None:
                    to_bias += slope.sum(0)
        made = (None if x is None else x.to(weight.dtype) for x in (to_weight, to_bias))
        return to_hidden, *made, None, None


def _parts(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Any:
    """(slice, (p, V) logits, (p,) targets) of each chunk of positions."""
    with torch.autocast(ctx.kind, enabled=False):
        weight = weight.to(ctx.dtype)
        bias = None if bias is None else bias.to(ctx.dtype)
        for start in range(0, len(target), ctx.size):
            part = slice(start, start + ctx.size)
            yield part, _wide(linear(hidden[part].to(ctx.dtype), weight, bias)), target[part]


# --------------------------------------------------------------------------- Liger


def has_liger() -> bool:
    """Whether Liger's kernels are installed (``pip install mars-reproduced[cuda]``)."""
    return find_spec("liger_kernel") is not None


def _fused_sums(hidden: Tensor, head: nn.Linear, target: Tensor, weights: Tensor) -> Tensor:
    """``weighted_sums`` for weights 0 and 1: one fused sum for each kind of position.

    The kernel gives a sum and no loss per position. Not measured: no GPU was at hand.
    """
    from liger_kernel.transformers.functional import (  # type: ignore[import-not-found]
        liger_fused_linear_cross_entropy as fused,
    )

    wide = torch.promote_types(head.weight.dtype, torch.float32)
    total = torch.zeros(len(weights), device=hidden.device)
    for kind in torch.unique(weights, dim=1).T:
        at = torch.nonzero((weights == kind[:, None]).all(0)).flatten()
        summed = fused(
            hidden[at], head.weight, target[at], bias=head.bias, reduction="sum", accum_dtype=wide
        )
        total = total + kind.float() * summed.float()
    return total
