"""Bind a decoding method to a model, refusing settings that mean nothing to it."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from mars.config import Decoding
from mars.decoding.base import BoundDecoder
from mars.decoding.caches import POLICIES
from mars.decoding.contract import DecodingError
from mars.decoding.costs import CostTable
from mars.decoding.drafts import DraftLength
from mars.models import mask_token_id


def check_settings(settings: Decoding) -> None:
    """Raise DecodingError, naming setting and remedy, for settings that no method understands."""
    from mars.decoding import DECODERS  # the registry imports this module

    if settings.decoder not in DECODERS:
        near = difflib.get_close_matches(settings.decoder, DECODERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(DECODERS)}"
        raise DecodingError(f"decoder: unknown {settings.decoder!r}; {hint}")
    decoder, tau, size = settings.decoder, settings.tau, settings.block_size
    if decoder in ("ar", "jacobi") and tau != 1:
        raise DecodingError(f"tau is {tau:g}, but {decoder} has no threshold: leave it at 1")
    if decoder == "ar" and size != 1:
        raise DecodingError(f"block_size is {size}, but ar drafts nothing: leave it at 1")
    if decoder in ("jacobi", "block_diffusion") and (
        settings.cache == "block" or settings.cache_block is not None
    ):
        raise DecodingError(
            f"{decoder} has no block cache: set cache: cursor (or none), no cache_block"
        )
    if decoder != "block_diffusion" and settings.alignment is not None:
        raise DecodingError(
            f"alignment is {settings.alignment!r}, but only block_diffusion decodes by alignment"
        )
    if settings.draft == "auto" and decoder != "mars":
        raise DecodingError(f"draft: auto is of mars only: leave it out for {decoder}")
    POLICIES[settings.cache](settings.cache_block)


def make_decoder(
    model: Any,
    tokenizer: Any,
    settings: Decoding,
    *,
    mask_id: int | None = None,
    end_ids: tuple[int, ...] | None = None,
    generator: torch.Generator | None = None,
    costs: CostTable | None = None,
    method: type[BoundDecoder] | None = None,
    positions: int | None = None,
    compile: bool = False,
) -> BoundDecoder:
    """Bind a decoding method to a model.

    Args:
        model: a Llama/Qwen-style causal LM of ``transformers``, in eval mode.
        tokenizer: decodes stop sequences; its end-of-sequence token ends a turn.
        settings: everything that shapes a generation.
        mask_id: the id of ``[MASK]``; None asks ``mars.models``.
        end_ids: end-of-turn ids; None takes the tokenizer's and the model's generation config's.
        generator: source of samples where ``temperature`` > 0; None seeds one with 0, so that
            the same calls on a new decoder give the same samples.
        costs: what a forward of this model costs on this machine; needed by ``draft: auto``.
        method: another class than the registry's for ``settings.decoder``.
        positions: context limit; None: the model's own.
        compile: compile the model's body (on CUDA with CUDA graphs).
    """
    from mars.decoding import DECODERS  # the registry imports this module

    check_settings(settings)
    extra: dict[str, Any] = {}
    if settings.decoder == "block_diffusion":
        extra["alignment"] = settings.alignment or "stream"
    if settings.draft == "auto":
        if costs is None:
            raise DecodingError(
                "draft: auto chooses by what a forward costs: measure that (mars.decoding.costs)"
            )
        extra["drafts"] = DraftLength(costs, settings.block_size)
    if mask_id is None:
        mask_id = mask_token_id(model, tokenizer)
    if generator is None and settings.temperature > 0:
        generator = torch.Generator(model.device).manual_seed(0)
    return (method or DECODERS[settings.decoder])(
        model,
        tokenizer,
        width=settings.block_size,
        tau=settings.tau,
        rule=settings.rule,
        cache=settings.cache,
        cache_block=settings.cache_block,
        mask_id=mask_id,
        end_ids=end_of_turn_ids(model, tokenizer) if end_ids is None else end_ids,
        temperature=settings.temperature,
        generator=generator,
        positions=positions,
        compile=compile,
        **extra,
    )


def end_of_turn_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a turn: the tokenizer's end token and those of the generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = set(configured if isinstance(configured, list) else [configured])
    ids.add(getattr(tokenizer, "eos_token_id", None))
    return tuple(sorted(i for i in ids if i is not None))
