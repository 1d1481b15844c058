"""Decoding: one contract for every method, one registry of methods.

``make_decoder(model, tokenizer, settings).generate(requests, slots)`` decodes requests;
``Engine(decoder, slots, columns)`` takes them as they come.
"""

from __future__ import annotations

from typing import Any

from mars.decoding.ar import ArDecoder
from mars.decoding.block_diffusion import BlockDiffusionDecoder
from mars.decoding.contract import Decoder, DecodingError, Generation, Request, Work
from mars.decoding.engine import Engine
from mars.decoding.jacobi import JacobiDecoder
from mars.decoding.make import make_decoder
from mars.decoding.mars import MarsDecoder

DECODERS: dict[str, Any] = {
    "ar": ArDecoder,
    "mars": MarsDecoder,
    "jacobi": JacobiDecoder,
    "block_diffusion": BlockDiffusionDecoder,
}

__all__ = [
    "DECODERS",
    "Decoder",
    "DecodingError",
    "Engine",
    "Generation",
    "Request",
    "Work",
    "make_decoder",
]
