"""Acceptance rules: which predictions of a step become tokens. Pure functions over logits.

Shapes: N rows, D predictions inspected a row, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import BoolTensor, LongTensor, Tensor


def _probability(probabilities: Tensor, tokens: Tensor) -> Tensor:
    """p of the emitted token."""
    return probabilities.gather(-1, tokens[..., None])[..., 0]


def _entropy(probabilities: Tensor, tokens: Tensor) -> Tensor:
    """exp(−H): 1 for a certain distribution, 1/V for a uniform one."""
    del tokens  # a property of the whole distribution
    return torch.special.entr(probabilities).sum(-1).neg().exp()


def _margin(probabilities: Tensor, tokens: Tensor) -> Tensor:
    """p1 − p2; where sampling emitted another token, how far it leads the best of the others."""
    emitted = _probability(probabilities, tokens)
    others = probabilities.scatter(-1, tokens[..., None], 0.0)
    return emitted - others.amax(-1)


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "probability": _probability,
    "entropy": _entropy,
    "margin": _margin,
}
"""Rule → confidence of the emitted tokens: (…, V) probabilities and (…) tokens → (…)."""


def suppress(logits: Tensor, mask_id: int | None) -> Tensor:
    """The logits in float32 (float64 where they are), ``[MASK]`` at −inf: in place where it can."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits = logits.to(wide)
    if mask_id is not None:
        logits[..., mask_id] = -torch.inf
    return logits


def predict(
    logits: Tensor,
    rule: str,
    mask_id: int | None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[LongTensor, Tensor]:
    """The token each row of logits emits, and its confidence in (0, 1].

    Args:
        logits: (…, V) as the model gives them; they are overwritten.
        rule: a key of ``RULES``; always over the untempered distribution.
        mask_id: the id of ``[MASK]``, which is never emitted.
        temperature: 0 is greedy; otherwise tokens are sampled.
        generator: source of the samples.

    Returns:
        (…) tokens and (…) confidences.
    """
    logits = suppress(logits, mask_id)
    probabilities = logits.softmax(-1)
    if temperature > 0:
        tempered = (logits / temperature).softmax(-1)
        flat = torch.multinomial(tempered.flatten(0, -2), 1, generator=generator)
        tokens = flat.view(logits.shape[:-1])
    else:
        tokens = logits.argmax(-1)
    confidence = RULES[rule](probabilities, tokens)
    tiny = torch.finfo(confidence.dtype).tiny
    return tokens, confidence.clamp(tiny, 1.0)  # type: ignore[return-value]


def accepted_counts(agree: BoolTensor, ends: BoolTensor, available: LongTensor) -> LongTensor:
    """How many predictions of each row become tokens, counted from the left.

    The first always does; then each that agrees, up to and including an end-of-turn token.

    Args:
        agree: (N, D) whether prediction d may follow those before it (column 0 is not read).
        ends: (N, D) whether it is an end-of-turn token.
        available: (N,) how many predictions the row may take at most; 0 for a row that waits.

    Returns:
        (N,) counts in [0, D].
    """
    go = agree & (torch.arange(agree.shape[1], device=agree.device) < available[:, None])
    go[:, 1:] &= ~ends[:, :-1]
    go[:, 0] = available > 0
    return go.long().cumprod(1).sum(1)  # type: ignore[return-value]
