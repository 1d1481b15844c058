"""What is counted from a decoder's work is what its model computes, and holds in memory."""

from __future__ import annotations

import pytest
import torch
from decoding.tiny_models import ARCHITECTURES, END, MASK, VOCABULARY, make
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from mars import measurement
from mars.decoding import Request
from mars.decoding.contract import Work
from mars.evaluation.throughput import counted
from mars.evaluation.throughput.opponents import TransformersGenerate
from mars.evaluation.throughput.released import ReleasedDecoder


def tiny(architecture: str):
    """In float32."""
    config_class, model_class, extra = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=False,
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
        **extra,
    )
    return model_class(config).eval()


def decoders(model):
    yield make(model, decoder="ar", end_ids=())
    for cache in ({"cache": "cursor"}, {"cache": "none"}, {"cache": "block", "cache_block": 4}):
        yield make(model, decoder="mars", block_size=4, tau=0.05, end_ids=(), **cache)
    yield ReleasedDecoder(model, block_size=4, tau=0.05, cache_block=4, mask_id=MASK, end_ids=())
    for cache in ("dynamic", "static"):
        yield TransformersGenerate(model, cache=cache, pad_id=0, end_ids=())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_are_those_of_the_matrix_products(architecture):
    """Within 2 %: the counter sees the rotary positions' products too, which are not counted."""
    model = tiny(architecture)
    asked = [Request((3, 4, 5, 6, 7), 12), Request((8, 9), 12), Request((10, 11, 12), 12)]
    for decoder in decoders(model):
        # attention as plain matrix products, which the counter sees
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            decoder.generate(asked)
        found = counted.flops(decoder.work, model.config)
        assert found == pytest.approx(counter.get_total_flops(), rel=0.02), decoder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bytes_are_those_of_weights_and_cache(architecture):
    model = tiny(architecture)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[3, 4, 5]]), cache=cache, use_cache=True)
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    weights = sum(
        module.weight.nbytes for module in model.modules() if isinstance(module, torch.nn.Linear)
    )
    one = counted.bytes_moved(Work(forwards=1), model.config, torch.float32)
    assert one == weights
    written = counted.bytes_moved(Work(tokens=3), model.config, torch.float32)
    read = counted.bytes_moved(Work(cached=3), model.config, torch.float32)
    assert written == read == kept
    halves = counted.bytes_moved(Work(forwards=1, cached=3), model.config, torch.bfloat16)
    assert halves == (weights + kept) / 2


def test_ceilings_are_measured(monkeypatch):
    monkeypatch.setattr(measurement, "CEILING_SECONDS", 0.0)
    made = measurement.measure_ceilings(torch.float32, "cpu")
    assert made.flops > 1e8
    assert made.bytes > 1e8
