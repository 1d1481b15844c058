"""Fast attention and loss against the naive ones: both streams whole, every pair, every logit."""

import shutil

import pytest
import torch
from tiny_training import END, EXAMPLES, KEYS, MASK, build_model, example, objective
from torch.nn.attention.flex_attention import create_mask, flex_attention
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from mars import streams
from mars.streams import IGNORE, dense_mask, mask_mod
from mars.training import attention
from mars.training.attention import Flex, is_packed, packed_attention
from mars.training.objectives import base
from mars.training.objectives.base import Terms, visible_pairs
from mars.training.objectives.block_diffusion import draw_noise, whole_blocks
from mars.training.objectives.mars import whole_blocks_from_start

KINDS = [
    ("ar_sft", "decoder"),
    ("mars", "decoder"),
    ("mars", "stream"),
    ("block_diffusion", "stream"),
    ("block_diffusion", "own"),
]
LONG = [example(2, 21, 4, 9, start=3), *EXAMPLES, example(1, 3, 1, 1)]
LONG_KEYS = [(1, i) for i in range(len(LONG))]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def untrimmed(name, alignment, size, sample, key):
    """One conversation in the 2L layout: every position has a column in the masked stream."""
    turns = int(sample.turn.max()) + 1
    if name == "ar_sft":
        return streams.ar_layout(sample.ids, sample.response)
    if name == "block_diffusion":
        padded = whole_blocks(sample, size, END)
        noise, rate = draw_noise(0, key, padded.turn, size)
        return streams.block_diffusion_layout(
            padded.ids, padded.turn, size, MASK, noise, rate, alignment
        )
    if alignment == "stream":
        padded = whole_blocks_from_start(sample, size, END)
        return streams.stream_layout(padded.ids, padded.turn, size, MASK, trimmed=False)
    phases = [streams.block_phase(0, *key, t, size) for t in range(turns)]
    return streams.mars_layout_full(sample.ids, sample.turn, size, phases, MASK)


def naive(model, made, layouts):
    """Sums over conversations one at a time: a dense mask, logits of every column."""
    ar = mask = torch.zeros((), dtype=torch.float64)
    for layout in layouts:
        logits = model(
            input_ids=layout.input_ids,
            attention_mask=dense_mask(made.predicate, layout),
            position_ids=layout.position,
        ).logits[0]
        losses = [
            cross_entropy(logits, label[0], reduction="none", ignore_index=IGNORE)
            for label in (layout.ar_label, layout.mask_label)
        ]
        ar = ar + losses[0].sum()
        mask = mask + (losses[1] * layout.mask_weight[0].double()).sum()
    return Terms(ar if made.wants_ar else None, mask if made.wants_mask else None)


@pytest.mark.parametrize("packing", ["a row each", "packed", "one row"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize(("name", "alignment"), KINDS)
@pytest.mark.parametrize("chunk", [3, 128])
def test_a_fast_step_is_the_naive_step(monkeypatch, chunk, name, alignment, size, packing):
    """Loss and gradients to 1e-10; grouped queries, several turns, short and one-token responses.

    Chunks of 3 queries cut every conversation; 128 none.
    """
    monkeypatch.setattr(attention, "CHUNK", chunk)
    monkeypatch.setattr(attention, "MASKED_CHUNK", chunk)
    model = build_model("llama")
    made = objective(name, alignment=alignment, block_size=size, ar_weight=0.7)
    full = [
        untrimmed(name, alignment, size, sample, key)
        for sample, key in zip(LONG, LONG_KEYS, strict=True)
    ]
    expected = naive(model, made, full).total(0.7)
    wanted = gradients(model, expected)

    rows = [made.row(sample, key) for sample, key in zip(LONG, LONG_KEYS, strict=True)]
    split = {"a row each": [[r] for r in rows], "packed": [rows[:3], rows[3:4], rows[4:]],
             "one row": [rows]}[packing]  # fmt: skip
    with packed_attention(model):
        assert is_packed(model)
        found = made.loss(model, made.batch(split, LONG_KEYS)).total(0.7)
        got = gradients(model, found)
    assert not is_packed(model)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10 * float(wanted.abs().max()))


def test_what_attention_computes_is_what_is_seen():
    """Pairs outside every query's sight are mostly not asked for: that is the point."""
    sample = example(200, 300)
    for name, share in (("ar_sft", 0.75), ("mars", 0.7)):
        made = objective(name)
        layout = made.collate([sample], [(0, 0)]).layout
        sight = attention.Documents(made.predicate, layout, 1, torch.float32)
        asked = sum(chunk.mask.numel() for group in sight.groups for chunk in group.chunks)
        seen = dense_mask(made.predicate, layout)
        assert visible_pairs(layout) == int(seen.sum())
        assert int(seen.sum()) / asked > share
        assert int(seen.sum()) / seen.numel() < 0.55


def test_keys_are_not_repeated_for_grouped_queries(monkeypatch):
    layout = objective("ar_sft").collate(EXAMPLES, KEYS).layout
    sight = attention.Documents(streams.AR, layout, 2, torch.float64)
    asked, original = [], attention._FLASH

    def spy(query, key, value, **options):
        asked.append((query.shape[1], key.shape[1]))
        return original(query, key, value, **options)

    rows, width = layout.shape
    query = torch.randn(rows, 4, width, 8, dtype=torch.float64)
    keys = torch.randn(rows, 2, width, 8, dtype=torch.float64)
    monkeypatch.setattr(attention, "_FLASH", spy)
    assert sight.attend(query, keys, keys, None).shape == (rows, width, 4, 8)
    assert set(asked) == {(2, 2)}


@pytest.mark.parametrize(("name", "alignment"), KINDS)
def test_flex_attention_would_see_the_same(name, alignment):
    """On CUDA the rows go to FlexAttention as they are, with the same predicates."""
    made = objective(name, alignment=alignment)
    rows = [made.row(sample, key) for sample, key in zip(LONG, LONG_KEYS, strict=True)]
    layout = made.batch([rows[:4], rows[4:]], LONG_KEYS).layout
    count, width = layout.shape
    found = create_mask(mask_mod(made.predicate, layout), count, 1, width, width, device="cpu")
    assert torch.equal(found, dense_mask(made.predicate, layout))
    block = attention.Flex(made.predicate, layout, torch.float64).mask
    assert block.shape == (count, 1, width, width)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("packing", ["a row each", "packed"])
@pytest.mark.parametrize(("name", "alignment"), KINDS)
def test_flex_attention_gives_the_naive_loss(monkeypatch, name, alignment, packing):
    """Its forward, not compiled: on a CPU FlexAttention has no backward. Grouped queries."""
    made = objective(name, alignment=alignment, block_size=4, ar_weight=0.7)
    model = build_model("llama")
    rows = [made.row(sample, key) for sample, key in zip(LONG, LONG_KEYS, strict=True)]
    split = [[r] for r in rows] if packing == "a row each" else [rows[:3], rows[3:4], rows[4:]]
    calls = []

    def flex(query, key, value, block_mask, **options):
        calls.append(block_mask)
        return flex_attention(query, key, value, block_mask=block_mask, **options)

    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex)
    monkeypatch.setattr(base, "make_sight", lambda p, layout, _, dtype: Flex(p, layout, dtype))
    with torch.no_grad():
        expected = naive(model, made, rows).total(0.7)
        with packed_attention(model):
            found = made.loss(model, made.batch(split, LONG_KEYS)).total(0.7)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    assert len(calls) == model.config.num_hidden_layers
    assert len({id(mask) for mask in calls}) == 1  # made once a batch


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_in_one_dtype(monkeypatch):
    """Autocast leaves rotated queries and keys wider than values: FlexAttention takes no mix."""
    layout = objective("mars").collate(EXAMPLES, KEYS).layout
    torch.manual_seed(0)
    rows, width = layout.shape
    query, key = (torch.randn(rows, heads, width, 16) for heads in (4, 2))
    value = torch.randn(rows, 2, width, 16, dtype=torch.bfloat16)
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)
    made = Flex(streams.MARS, layout, torch.bfloat16).attend(query, key, value, None)
    assert made.dtype == torch.bfloat16
    sight = attention.Documents(streams.MARS, layout, 2, torch.float32)
    wanted = sight.attend(query, key, value.float(), None)
    real = layout.document >= 0
    torch.testing.assert_close(made[real].float(), wanted[real], rtol=0.02, atol=0.02)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch compiles it with g++")
def test_compiled_flex_attention_gives_the_dense_loss(monkeypatch):
    """Its forward, compiled as on CUDA, for batches of several shapes, as autocast has it too."""
    made = objective("mars", ar_weight=0.7)
    torch.manual_seed(0)
    shape = build_model("llama").config.to_dict() | {"hidden_size": 128, "head_dim": 32}
    model = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="sdpa"))
    model.config.max_position_embeddings = 512
    monkeypatch.setattr(base, "make_sight", lambda p, layout, _, dtype: Flex(p, layout, dtype))
    for seed in range(3):
        found = [example(5 + i, 60 + 10 * (seed + i), start=i) for i in range(4 + seed)]
        keys = [(0, i) for i in range(len(found))]
        rows = [made.row(e, key) for e, key in zip(found, keys, strict=True)]
        batch = made.batch([rows[:2], rows[2:]], keys)
        for half in (False, True):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                dense = made.loss(model, batch).total(0.7)
                with packed_attention(model):
                    flex = made.loss(model, batch).total(0.7)
            assert flex.item() == pytest.approx(dense.item(), rel=2e-3 if half else 1e-5)


def test_a_call_without_a_sight_is_sdpa(model):
    ids = torch.arange(3, 15)[None]
    plain = model(input_ids=ids).logits
    with packed_attention(model):
        torch.testing.assert_close(model(input_ids=ids).logits, plain)
