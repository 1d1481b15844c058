"""A bfloat16 model, as on a GPU: greedy up to its own rounding, confidence not rounded."""

from __future__ import annotations

import copy

import pytest
import torch

from .test_equalities import some_requests
from .tiny_models import MASK, make, random_model

ROUNDING = 8 * 2**-8
"""Of a logit: a few of the last bits, which another order of summing changes."""


@pytest.fixture(scope="module")
def models():
    """One for our decoders, one as transformers has it."""
    half = copy.deepcopy(random_model()).bfloat16()
    return half, copy.deepcopy(half)


def logits_of(model, request, made):
    """(T, V) float32: what the model says before each token of a response, [MASK] left out."""
    ids = torch.tensor([[*request.prompt_ids, *made.ids]])
    with torch.no_grad():
        found = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    found[:, MASK] = -torch.inf
    return found


@pytest.mark.parametrize(
    "method",
    [
        {"decoder": "ar"},
        {"decoder": "mars", "block_size": 4, "tau": 1.0},
        {"decoder": "mars", "block_size": 4, "tau": 1.0, "cache": "none"},
        {"decoder": "mars", "block_size": 4, "tau": 1.0, "cache": "block", "cache_block": 6},
        {"decoder": "jacobi", "block_size": 4},
    ],
    ids=lambda method: f"{method['decoder']} {method.get('cache', 'cursor')}",
)
def test_every_token_is_the_likeliest_up_to_rounding(models, method):
    ours, stock = models
    requests = some_requests(6, seed=3)
    for request, made in zip(requests, make(ours, **method).generate(requests), strict=True):
        logits = logits_of(stock, request, made)
        best = logits.amax(-1)
        emitted = logits[range(made.tokens), made.ids]
        assert (best - emitted <= ROUNDING * best.abs()).all()


def test_confidence_is_of_float32(models):
    """In bfloat16 0.9986 would be 1, and pass any threshold."""
    ours, stock = models
    requests = some_requests(6, seed=3)
    found, exact = [], []
    for request, made in zip(requests, make(ours, decoder="ar").generate(requests), strict=True):
        spread = logits_of(stock, request, made).softmax(-1)
        found += made.confidence
        exact += spread[range(made.tokens), made.ids].tolist()
    assert found == pytest.approx(exact, abs=0.1)
    assert any(value != torch.tensor(value).bfloat16().item() for value in found)


def test_drafts_are_accepted_at_their_threshold(models):
    decoder = make(models[0], decoder="mars", block_size=4, tau=0.6)
    counts = set()
    for made in decoder.generate(some_requests(6, seed=3)):
        counts |= set(made.accepted)
        firsts = {sum(made.accepted[:step]) for step in range(made.forwards)}
        assert all(c >= 0.6 for n, c in enumerate(made.confidence) if n not in firsts)
    assert max(counts) > 1
