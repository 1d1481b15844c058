"""Bind a decoding method to a model, refusing settings that mean nothing to it."""

from __future__ import annotations

from typing import Any

import torch

from mars.config import Decoding
from mars.decoding.caches import POLICIES
from mars.decoding.contract import Decoder, DecodingError
from mars.models import mask_token_id


def check_settings(settings: Decoding) -> None:
    """Raise DecodingError, naming setting and remedy, for settings that no method understands."""
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
    POLICIES[settings.cache](settings.cache_block)


def make_decoder(
    model: Any,
    tokenizer: Any,
    settings: Decoding,
    *,
    mask_id: int | None = None,
    end_ids: tuple[int, ...] | None = None,
    generator: torch.Generator | None = None,
) -> Decoder:
    """Bind a decoding method to a model.

    Args:
        model: a Llama/Qwen-style causal LM of ``transformers``, in eval mode.
        tokenizer: decodes stop sequences; its end-of-sequence token ends a turn.
        settings: everything that shapes a generation.
        mask_id: the id of ``[MASK]``; None asks ``mars.models``.
        end_ids: end-of-turn ids; None takes the tokenizer's and the model's generation config's.
        generator: source of samples where ``temperature`` > 0; None seeds one with 0, so that
            the same calls on a new decoder give the same samples.
    """
    from mars.decoding import DECODERS  # the registry imports this module

    check_settings(settings)
    extra: dict[str, Any] = {}
    if settings.decoder == "block_diffusion":
        extra["alignment"] = settings.alignment or "stream"
    if mask_id is None:
        mask_id = mask_token_id(model, tokenizer)
    if generator is None and settings.temperature > 0:
        generator = torch.Generator(model.device).manual_seed(0)
    return DECODERS[settings.decoder](
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
        **extra,
    )


def end_of_turn_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a turn: the tokenizer's end token and those of the generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = set(configured if isinstance(configured, list) else [configured])
    ids.add(getattr(tokenizer, "eos_token_id", None))
    return tuple(sorted(i for i in ids if i is not None))
