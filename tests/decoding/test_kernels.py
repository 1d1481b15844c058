"""Attention and linear layers of ours, held to the stock ones they stand for."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from mars.decoding import DecodingError
from mars.decoding.attention import (
    NAME,
    Part,
    Window,
    group_mask,
    rows_attention,
    use_rows_attention,
)
from mars.decoding.linears import PackedLinear, can_pack, choose_linears, pack_linears

from .test_equalities import some_requests
from .tiny_models import ARCHITECTURES, make, outline, random_model

ROWS, WIDTH, KEYS, SIZE = 3, 4, 9, 8


def slow_attention(query, key, value, reach):
    """One head, one query, one sum at a time."""
    rows, heads, width, size = query.shape
    groups = heads // key.shape[1]
    out = torch.zeros(rows, width, heads, size, dtype=query.dtype)
    for n in range(rows):
        for h in range(heads):
            for w in range(width):
                seen = int(reach[n, w]) + 1
                scores = key[n, h // groups, :seen] @ query[n, h, w] * size**-0.5
                out[n, w, h] = scores.softmax(0) @ value[n, h // groups, :seen]
    return out


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("widths", [None, [4, 1, 2]])
def test_attention_is_the_obvious_one(heads, widths):
    draw = torch.Generator().manual_seed(heads)
    states = [
        torch.randn(ROWS, n, length, SIZE, generator=draw, dtype=torch.float64)
        for n, length in ((heads, WIDTH), (2, KEYS), (2, KEYS))
    ]
    query, key, value = states
    reach = torch.tensor([[3, 4, 5, 6], [0, 1, 2, 3], [5, 6, 7, 8]])
    want = slow_attention(query, key, value, reach)
    mask = group_mask(reach, KEYS, heads // 2, torch.float64)
    packed = None
    if widths is not None:
        wanted = torch.arange(WIDTH) < torch.tensor(widths)[:, None]
        packed = wanted.flatten().nonzero()[:, 0]
        query = query.transpose(1, 2).flatten(0, 1)[packed].transpose(0, 1)[None]
        want = want.flatten(0, 1)[packed][None]
    window = Window(ROWS, WIDTH, packed)
    found, _ = rows_attention(None, query, key, value, mask, SIZE**-0.5, window)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


def test_parts_attend_as_if_alone():
    """Rows 0 and 1, two columns each, behind 5 keys; row 2, a prompt of four."""
    query = torch.randn(1, 4, 8, SIZE, dtype=torch.float64)
    key, value = torch.randn(2, 3, 2, KEYS, SIZE, dtype=torch.float64)
    short = torch.tensor([[3, 4], [1, 2]])
    mask = group_mask(short, 5, 2, torch.float64)
    whole = [Window(2, 2, torch.arange(4)), Window(1, 4, torch.arange(4), causal=True)]
    parts = (
        Part(slice(0, 2), slice(0, 4), 5, mask, whole[0]),
        Part(slice(2, 3), slice(4, 8), 4, None, whole[1]),
    )
    window = Window(3, 4, torch.tensor([0, 1, 4, 5, 8, 9, 10, 11]), parts=parts)
    found, _ = rows_attention(None, query, key, value, None, SIZE**-0.5, window)
    first = query[0, :, :4].reshape(4, 2, 2, SIZE).transpose(0, 1)
    want = slow_attention(first, key[:2], value[:2], short).flatten(0, 1)
    torch.testing.assert_close(found[0, :4], want, rtol=0, atol=1e-12)
    want = slow_attention(query[:, :, 4:], key[2:], value[2:], torch.arange(4)[None])[0]
    torch.testing.assert_close(found[0, 4:], want, rtol=0, atol=1e-12)


def test_a_prompt_needs_no_mask():
    query = torch.randn(2, 4, 5, SIZE, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, 5, SIZE, dtype=torch.float64)
    reach = torch.arange(5).expand(2, 5)
    found, _ = rows_attention(None, query, key, value, None, SIZE**-0.5, Window(2, 5, causal=True))
    torch.testing.assert_close(found, slow_attention(query, key, value, reach), rtol=0, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_keeps_its_own_attention_elsewhere(architecture):
    """``generate`` and training of the same model object give what they gave before."""
    model = copy.deepcopy(random_model(architecture))
    model.set_attn_implementation("sdpa")
    ids = torch.arange(2, 14).view(2, 6)
    seen = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    before = model(ids, attention_mask=seen).logits
    made = model.generate(ids, attention_mask=seen, max_new_tokens=8, do_sample=False)
    assert use_rows_attention(model) == 2
    assert model.config._attn_implementation == NAME
    torch.testing.assert_close(model(ids, attention_mask=seen).logits, before, rtol=0, atol=1e-12)
    again = model.generate(ids, attention_mask=seen, max_new_tokens=8, do_sample=False)
    assert torch.equal(made, again)
    cached = model(ids, attention_mask=seen, cache=DynamicCache()).logits
    torch.testing.assert_close(cached, before, rtol=0, atol=1e-12)


packable = pytest.mark.skipif(
    can_pack(copy.deepcopy(random_model()).float()) is not None,
    reason="packs weights for oneDNN, which this PyTorch lacks",
)


@packable
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("least", [1, 4])
def test_a_packed_linear_is_the_linear(bias, least):
    stock = torch.nn.Linear(48, 80, bias=bias)
    packed = PackedLinear(stock, least)
    with torch.inference_mode():
        for shape in ((1, 48), (2, 48), (3, 5, 48), (1, 1, 48), (64, 48)):
            states = torch.randn(shape)
            torch.testing.assert_close(packed(states), stock(states), rtol=1e-5, atol=1e-5)
        window = torch.randn(4, 9, 48)[:, 2:5]  # not contiguous
        torch.testing.assert_close(packed(window), stock(window), rtol=1e-5, atol=1e-5)


@packable
def test_a_packed_model_decodes_the_same():
    model = copy.deepcopy(random_model()).float()
    requests = some_requests(6, seed=9)
    method = {"decoder": "mars", "block_size": 4, "tau": 0.6}
    stock = outline(make(copy.deepcopy(model), **method).generate(requests))
    assert choose_linears(model, "packed") == "packed"
    assert not any(type(m) is torch.nn.Linear for m in model.modules())
    assert outline(make(model, **method).generate(requests)) == stock


def test_what_cannot_be_packed_stays_as_it_is():
    model = copy.deepcopy(random_model())  # float64
    assert choose_linears(model, "auto") == "stock"
    assert choose_linears(model, "stock") == "stock"
    assert any(type(m) is torch.nn.Linear for m in model.modules())
    with pytest.raises(DecodingError, match="packed linears are for float32"):
        pack_linears(model)
