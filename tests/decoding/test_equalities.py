"""Methods, caches, batches and thresholds that must agree token for token, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.decoding import Request

from .tiny_models import ARCHITECTURES, END, MASK, PROPERTY, decode, outline, random_model

TOKENS = st.integers(2, MASK - 1)
REQUESTS = st.lists(
    st.builds(
        Request,
        prompt_ids=st.lists(TOKENS, min_size=1, max_size=20).map(tuple),
        max_new_tokens=st.integers(1, 24),
    ),
    min_size=1,
    max_size=6,
)
TAUS = st.sampled_from([0.99, 0.9, 0.7, 0.5, 0.3])
FEW = settings(PROPERTY, max_examples=25)


def some_requests(count: int, seed: int, budget: int = 24) -> list[Request]:
    """Ragged prompts, drawn once."""
    draw = torch.Generator().manual_seed(seed)
    return [
        Request(
            tuple(torch.randint(2, MASK, (length,), generator=draw).tolist()),
            budget,
        )
        for length in torch.randint(1, 24, (count,), generator=draw).tolist()
    ]


def greedy(model, requests: list[Request], side: str) -> list[list[int]]:
    """transformers' own greedy generation of a padded batch, ``[MASK]`` suppressed."""
    width = max(len(r.prompt_ids) for r in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        prompt = torch.tensor(request.prompt_ids)
        place = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, place], attention[row, place] = prompt, 1
    out = model.generate(
        ids,
        attention_mask=attention,
        max_new_tokens=max(r.max_new_tokens for r in requests),
        do_sample=False,
        suppress_tokens=[MASK],
        eos_token_id=END,
        pad_token_id=0,
    )[:, width:].tolist()
    for row, request in enumerate(requests):
        if END in out[row]:
            out[row] = out[row][: out[row].index(END) + 1]
        out[row] = out[row][: request.max_new_tokens]
    return out


ONE_TOKEN = {
    "ar": {"decoder": "ar"},
    "ar, none": {"decoder": "ar", "cache": "none"},
    "ar, block": {"decoder": "ar", "cache": "block", "cache_block": 3},
    "mars": {"decoder": "mars", "block_size": 4},
    "mars, none": {"decoder": "mars", "block_size": 4, "cache": "none"},
    "mars, block": {"decoder": "mars", "block_size": 4, "cache": "block", "cache_block": 5},
    "jacobi": {"decoder": "jacobi", "block_size": 4},
    "jacobi, none": {"decoder": "jacobi", "block_size": 3, "cache": "none"},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_token_is_greedy_generate(architecture):
    model = random_model(architecture)
    requests = some_requests(7, seed=1)
    batch = greedy(model, requests, "left")
    assert batch == [greedy(model, [r], "right")[0] for r in requests]
    assert any(END in ids for ids in batch)
    assert any(END not in ids for ids in batch)
    for name, method in ONE_TOKEN.items():
        found = decode(requests, model, **method)
        assert [g.ids for g in found] == batch, name
        if "jacobi" not in name:
            assert all(set(g.accepted) == {1} for g in found), name


@FEW
@given(requests=REQUESTS, size=st.integers(1, 6), tau=TAUS, order=st.randoms())
def test_cursor_is_no_cache_alone_or_together_in_any_order(requests, size, tau, order):
    method = {"decoder": "mars", "block_size": size, "tau": tau}
    reference = [outline(decode([r], cache="none", **method))[0] for r in requests]
    assert outline(decode(requests, cache="none", **method)) == reference
    assert outline(decode(requests, **method)) == reference
    shuffled = list(range(len(requests)))
    order.shuffle(shuffled)
    found = outline(decode([requests[i] for i in shuffled], **method))
    assert found == [reference[i] for i in shuffled]


@FEW
@given(requests=REQUESTS, size=st.integers(1, 6), tau=TAUS, block=st.integers(1, 9))
def test_block_is_the_cache_free_reference_with_its_cuts(requests, size, tau, block):
    method = {"decoder": "mars", "block_size": size, "tau": tau, "cache_block": block}
    reference = [outline(decode([r], cache="none", **method))[0] for r in requests]
    assert outline(decode(requests, cache="block", **method)) == reference
    for ids, accepted, _ in reference:
        filled = 0
        for count in accepted:  # no draft crosses the end of a block
            assert filled % block + count <= block
            filled += count
        assert filled == len(ids)


@FEW
@given(requests=REQUESTS, taus=st.lists(TAUS | st.just(1.0), min_size=6, max_size=6))
def test_tau_per_row_is_separate_runs(requests, taus):
    method = {"decoder": "mars", "block_size": 4}
    mixed = [
        Request(r.prompt_ids, r.max_new_tokens, tau=tau)
        for r, tau in zip(requests, taus, strict=False)
    ]
    apart = [decode([r], tau=tau, **method)[0] for r, tau in zip(requests, taus, strict=False)]
    assert outline(decode(mixed, tau=0.5, **method)) == outline(apart)
    for tau, row in zip(taus, apart, strict=False):
        assert tau < 1 or set(row.accepted) == {1}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("rule", ["probability", "entropy", "margin"])
def test_equalities_hold_where_steps_accept_several(architecture, rule):
    """The properties above mean little where nothing is ever accepted: here much is."""
    model = random_model(architecture)
    requests = some_requests(8, seed=2)
    method = {"decoder": "mars", "block_size": 4, "tau": 0.6, "rule": rule}
    reference = decode(requests, model, cache="none", **method)
    assert outline(decode(requests, model, **method)) == outline(reference)
    counts = [count for g in reference for count in g.accepted]
    assert {1, 2, 3, 4} <= set(counts)
    block = decode(requests, model, cache="block", cache_block=6, **method)
    cuts = decode(requests, model, cache="none", cache_block=6, **method)
    assert outline(block) == outline(cuts)
    assert outline(block) != outline(reference)


@FEW
@given(requests=REQUESTS, window=st.integers(1, 6), cache=st.sampled_from(["cursor", "none"]))
def test_jacobi_is_greedy(requests, window, cache):
    found = decode(requests, decoder="jacobi", block_size=window, cache=cache)
    assert [g.ids for g in found] == [g.ids for g in decode(requests, decoder="ar")]


def test_jacobi_accepts_several_where_guesses_hold():
    """Where the output repeats itself, the last prompt token is a good first guess."""
    model = random_model()
    requests = some_requests(12, seed=4, budget=40)
    found = decode(requests, model, decoder="jacobi", block_size=4)
    assert max(count for g in found for count in g.accepted) > 1
    assert [g.ids for g in found] == [g.ids for g in decode(requests, model, decoder="ar")]


@FEW
@given(
    requests=REQUESTS,
    size=st.integers(1, 5),
    tau=TAUS | st.just(1.0),
    alignment=st.sampled_from(["stream", "own"]),
)
def test_block_diffusion_is_its_cache_free_reference(requests, size, tau, alignment):
    method = {"decoder": "block_diffusion", "block_size": size, "tau": tau, "alignment": alignment}
    reference = [outline(decode([r], cache="none", **method))[0] for r in requests]
    assert outline(decode(requests, **method)) == reference
    assert outline(decode(requests, cache="none", **method)) == reference


@pytest.mark.parametrize("alignment", ["stream", "own"])
def test_block_diffusion_fills_several_or_one(alignment):
    requests = some_requests(8, seed=5)
    method = {"decoder": "block_diffusion", "block_size": 4, "alignment": alignment}
    several = decode(requests, tau=0.5, **method)
    assert max(count for g in several for count in g.accepted) > 1
    one = decode(requests, tau=1.0, **method)
    assert max(count for g in one for count in g.accepted) == 1
    for g in one:  # whole blocks, one token a forward
        assert g.forwards == -(-g.tokens // 4) * 4


def test_block_diffusion_with_blocks_of_one_is_greedy():
    """A block of one token, read from the position before it, is autoregression."""
    requests = some_requests(5, seed=6)
    found = decode(requests, decoder="block_diffusion", block_size=1)
    assert [g.ids for g in found] == [g.ids for g in decode(requests, decoder="ar")]


def test_a_row_at_its_end_beside_one_that_took_a_whole_draft():
    """The widest window, 2B − 1 columns, may start at the last column of the longest row."""
    slow = Request(tuple(range(2, 22)), 3, tau=1.0)
    fast = Request((2, 3, 4), 20, tau=1e-6)
    for cache, cut in (("cursor", None), ("none", None), ("block", 5), ("block", 32)):
        for size in (2, 4, 8):
            method = {"decoder": "mars", "block_size": size, "cache": cache, "cache_block": cut}
            both = decode([slow, fast], tau=0.5, **method)
            assert outline(both) == outline(
                [decode([r], tau=0.5, **method)[0] for r in (slow, fast)]
            )
            assert max(both[1].accepted) == min(size, cut or size)
