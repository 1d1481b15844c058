"""``[MASK]`` is never emitted, even by a model that would say nothing else."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

from mars.decoding import Request

from .tiny_models import MASK, VOCABULARY, decode, outline, random_model

REQUESTS = [Request(tuple(range(2, 2 + n)), 20) for n in (1, 3, 8, 13, 20)]
FOUR = {"block_size": 4, "tau": 0.5}
METHODS = {
    "mars, cursor": {"decoder": "mars", "cache": "cursor", **FOUR},
    "mars, none": {"decoder": "mars", "cache": "none", **FOUR},
    "mars, block": {"decoder": "mars", "cache": "block", "cache_block": 6, **FOUR},
    "mars, entropy": {"decoder": "mars", "rule": "entropy", **FOUR},
    "mars, margin": {"decoder": "mars", "rule": "margin", **FOUR},
    "mars, sampled": {"decoder": "mars", "temperature": 1.5, **FOUR},
    "jacobi, cursor": {"decoder": "jacobi", "block_size": 4},
    "jacobi, none": {"decoder": "jacobi", "block_size": 4, "cache": "none"},
    "block_diffusion, stream": {"decoder": "block_diffusion", "alignment": "stream", **FOUR},
    "block_diffusion, own": {"decoder": "block_diffusion", "alignment": "own", **FOUR},
    "block_diffusion, none": {"decoder": "block_diffusion", "cache": "none", **FOUR},
    "ar": {"decoder": "ar"},
}


@functools.cache
def insistent() -> Any:
    """The random model, its logit of ``[MASK]`` raised above all others wherever it looks."""
    model = copy.deepcopy(random_model())
    head = torch.nn.Linear(model.config.hidden_size, VOCABULARY, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        head.bias.zero_()
        head.bias[MASK] = 1e4
    model.lm_head = head
    return model


@torch.inference_mode()
def test_the_model_says_nothing_but_mask():
    ids = torch.randint(0, VOCABULARY, (8, 40), generator=torch.Generator().manual_seed(0))
    ids[:, 10:14] = MASK
    assert set(insistent()(ids).logits.argmax(-1).flatten().tolist()) == {MASK}


@pytest.mark.parametrize("name", METHODS)
def test_mask_is_not_emitted_and_takes_no_part(name):
    """Raising its logit changes neither a token, nor a confidence, nor what is accepted."""
    found = decode(REQUESTS, insistent(), **METHODS[name])
    assert all(MASK not in g.ids for g in found)
    assert all(g.ids for g in found)
    plain = decode(REQUESTS, random_model(), **METHODS[name])
    assert outline(found) == outline(plain)
    for one, other in zip(found, plain, strict=True):
        assert one.confidence == pytest.approx(other.confidence, abs=1e-12)
    if name != "ar" and "jacobi" not in name:  # masks were drafted, and drafts were accepted
        assert max(count for g in found for count in g.accepted) > 1
