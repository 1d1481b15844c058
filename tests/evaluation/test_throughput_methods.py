"""Opponents say what they say of themselves; replayed acceptance is the same for every method."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from decoding.tiny_models import (
    ARCHITECTURES,
    END,
    MASK,
    POSITIONS,
    PROPERTY,
    VOCABULARY,
    make,
    outline,
    random_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import StaticLayer

from mars.config import Decoding, Throughput
from mars.decoding import DecodingError, Generation, Request, make_decoder
from mars.decoding.contract import Work
from mars.decoding.linears import PackedLinear, can_pack
from mars.evaluation.throughput.machine import _bytes_of, peak_memory_mb
from mars.evaluation.throughput.opponents import TransformersGenerate
from mars.evaluation.throughput.released import ReleasedDecoder
from mars.evaluation.throughput.replay import Draws, easy_rate, replaying
from mars.models import load_model

prompt_lists = st.lists(
    st.lists(st.integers(2, VOCABULARY - 2), min_size=1, max_size=9), min_size=1, max_size=5
)


@contextmanager
def watching(owner: Any, name: str, seen: Callable[[Any, Any], object]) -> Iterator[None]:
    """Have ``seen`` told of each call of a method: of whom, and what it returned."""
    method = getattr(owner, name)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        made = method(self, *arguments, **named)
        seen(self, made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield


def longest_first(prompts: list[list[int]]) -> list[list[int]]:
    """The order in which the engine numbers requests."""
    return sorted(prompts, key=len, reverse=True)


def released(model: Any, block: int, size: int = 4, tau: float = 0.5, **more: Any) -> Any:
    options = {"mask_id": MASK, "end_ids": (END,)} | more
    return ReleasedDecoder(model, block_size=size, tau=tau, cache_block=block, **options)


def without_writing(generations: list[Generation]) -> list[Any]:
    """Outlines without the forwards that only wrote to the cache."""
    return [(g.ids, [a for a in g.accepted if a], g.finish) for g in generations]


# --------------------------------------------------------------------------- as released


@given(
    prompts=prompt_lists,
    block=st.integers(1, 9),
    size=st.integers(2, 5),
    tau=st.sampled_from([0.2, 0.5, 0.9, 1.0]),
    budgets=st.lists(st.integers(1, 30), min_size=5, max_size=5),
)
@PROPERTY
def test_released_accepts_what_the_block_cache_accepts(prompts, block, size, tau, budgets):
    model = random_model()
    asked = [Request(tuple(p), n) for p, n in zip(prompts, budgets, strict=False)]
    ours = make(model, block_size=size, decoder="mars", tau=tau, cache="block", cache_block=block)
    theirs = released(model, block, size, tau).generate(asked)
    assert without_writing(theirs) == outline(ours.generate(asked))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_released_on_every_architecture(architecture):
    model = random_model(architecture)
    asked = [Request((3, 4, 5, 6), 20), Request((7,), 20), Request((9, 8), 20)]
    ours = make(model, block_size=4, decoder="mars", tau=0.5, cache="block", cache_block=6)
    assert without_writing(released(model, 6).generate(asked)) == outline(ours.generate(asked))


def test_released_spends_a_forward_on_each_block_and_on_the_prompt():
    model = random_model()
    decoder = released(model, block=4, tau=1.0, end_ids=())
    (made,) = decoder.generate([Request((3, 4, 5), 12)])
    assert made.accepted == [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert decoder.work.forwards == 15
    # the prompt, 2 blocks, and steps of the block so far and 3 masks, 4 columns at most
    assert decoder.work.tokens == decoder.work.heads == 3 + 2 * 4 + 3 * (3 + 4 + 4 + 4)


def test_released_reaches_the_context_and_no_further():
    model = random_model()
    asked = [Request(tuple(range(2, 12)), 2 * POSITIONS), Request((5, 6), 3)]
    long, short = released(model, block=8, end_ids=()).generate(asked)
    assert (len(long.ids), long.finish) == (POSITIONS - 10, "context")
    assert (len(short.ids), short.finish) == (3, "budget")
    with pytest.raises(DecodingError, match="stop sequences"):
        released(model, block=8).generate([Request((5,), 3, stop=("x",))])


# --------------------------------------------------------------------------- transformers


@pytest.mark.parametrize(
    "shaping",
    [
        {"repetition_penalty": 1.1},  # as that of Qwen2.5-Instruct
        {"no_repeat_ngram_size": 2},
        {"num_beams": 3},
    ],
    ids=lambda shaping: next(iter(shaping)),
)
def test_what_a_checkpoint_says_of_generation_leaves_generate_greedy(shaping):
    model = load_model("embedded:toy-s")
    ends = (model.generation_config.eos_token_id,)
    asked = [Request(tuple(range(20, 40)), 24), Request((30, 31), 24)]
    ours = make(model, decoder="ar", mask_id=model.config.vocab_size - 1, end_ids=ends)
    for name, value in shaping.items():
        setattr(model.generation_config, name, value)
    opponent = TransformersGenerate(model, cache="dynamic", pad_id=0, end_ids=ends)
    assert outline(opponent.generate(asked)) == outline(ours.generate(asked))
    assert vars(model.generation_config).items() >= shaping.items()  # it stays the model's


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_emits_what_our_ar_emits(cache):
    model = random_model()
    asked = [Request((3, 4, 5, 6), 20), Request((7,), 20), Request((9, 8), 20)]
    opponent = TransformersGenerate(model, cache=cache, pad_id=0, end_ids=(END,))
    # generate may emit [MASK]; so may ours here, whose mask is a row that nothing predicts
    ours = make(model, decoder="ar", mask_id=0)
    assert outline(opponent.generate(asked)) == outline(ours.generate(asked))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_without_ends_fills_its_budget(cache):
    model = random_model()
    asked = [Request((3, 4, 5, 6), 24), Request((7,), 24), Request((9, 8), 24)]
    model.generation_config.eos_token_id = END
    ending = TransformersGenerate(model, cache=cache, pad_id=0, end_ids=(END,)).generate(asked)
    assert any(g.finish == "end_of_turn" for g in ending)
    forced = TransformersGenerate(model, cache=cache, pad_id=0, end_ids=())
    assert {(len(g.ids), g.finish) for g in forced.generate(asked)} == {(24, "budget")}
    assert forced.work.forwards == 24
    assert forced.work.tokens == 3 * (4 + 23)
    assert forced.work.heads == 3 * 24
    with pytest.raises(DecodingError, match="one max_new_tokens"):
        forced.generate([Request((3,), 2), Request((4,), 3)])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_static_cache_is_no_longer_than_its_batch_needs(compiled):
    """Whatever ran before on the same model. One that is compiled stays as long, and counts so."""
    opponent = TransformersGenerate(random_model(), cache="static", pad_id=0, end_ids=())
    opponent._compiled = compiled
    lengths: list[int] = []
    asked = [(3, 5), (6, 20), (3, 5)]
    with watching(StaticLayer, "update", lambda layer, made: lengths.append(made[0].shape[2])):
        for prompt, budget in asked:
            opponent.generate([Request((3,) * prompt, budget)])
    # 2 layers, and a forward for each token
    if not compiled:
        assert lengths == [p + b - 1 for p, b in asked for _ in range(2 * b)]
    assert (lengths[-1] > 3 + 5 - 1) == compiled
    assert opponent.work.cached == sum(lengths) / 2


# --------------------------------------------------------------------------- replay


@pytest.mark.parametrize(("mean", "size"), [(1.0, 4), (1.8, 4), (1.79, 16), (4.0, 4), (2.0, 2)])
def test_the_rate_gives_the_mean(mean, size):
    rate = easy_rate(mean, size)
    assert sum(rate**depth for depth in range(size)) == pytest.approx(mean, abs=1e-9)


def test_a_mean_beyond_the_draft_is_refused():
    with pytest.raises(ValueError, match="4\\.5 tokens per forward cannot come of 4"):
        easy_rate(4.5, 4)


def naive(easy: np.ndarray, length: int, size: int, block: int | None = None) -> list[int]:
    """Accepted counts of one response, read off its draws step by step."""
    counts, place = [], 0
    while place < length:
        end = length if block is None else min(length, (place // block + 1) * block)
        count = 1
        while count < size and place + count < end and easy[place + count]:
            count += 1
        counts.append(count)
        place += count
    return counts


def replayed(draws: Draws, size: int, **settings: Any) -> Any:
    made = Decoding(decoder="mars", block_size=size, tau=0.5, **settings)
    maker = {"mask_id": MASK, "end_ids": (), "positions": 4096}
    return make_decoder(random_model(), None, made, method=replaying(draws), **maker)


@given(
    prompts=prompt_lists, size=st.integers(2, 5), block=st.integers(1, 9), first=st.integers(0, 3)
)
@settings(PROPERTY, max_examples=20)
def test_every_method_is_given_the_same_draws(prompts, size, block, first):
    draws = Draws(1.6, 5, 8, 40, seed=1)
    draws.first = first
    easy = draws.easy.numpy()[first:]
    asked = [Request(tuple(prompt), 25) for prompt in longest_first(prompts)]
    free = [naive(easy[row], 25, size) for row in range(len(asked))]
    cut = [naive(easy[row], 25, size, block) for row in range(len(asked))]
    assert [g.accepted for g in replayed(draws, size).generate(asked)] == free
    waiting = replayed(draws, size).generate(asked, slots=2)
    assert [g.accepted for g in waiting] == free
    blocks = replayed(draws, size, cache="block", cache_block=block).generate(asked)
    assert [g.accepted for g in blocks] == cut
    theirs = released(random_model(), block, size, end_ids=(), agreement=draws.agreement).generate(
        asked
    )
    assert [[a for a in g.accepted if a] for g in theirs] == cut


def test_a_long_replay_has_the_mean_it_was_asked_for():
    draws = Draws(1.8, 4, 4, 1000, seed=0)
    counts = [
        count
        for made in replayed(draws, 4).generate([Request((3, 4), 1000)] * 4)
        for count in made.accepted
    ]
    error = np.std(counts) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - 1.8) < 3 * error
    assert error < 0.03


# --------------------------------------------------------------------------- memory


def test_peak_memory_is_of_what_the_method_holds():
    """16 MiB a tensor; whatever ran before counts for nothing."""

    class Holding:
        model = torch.nn.Linear(2**11, 2**11, bias=False)

        def __init__(self, tensors: int) -> None:
            self._tensors = tensors

        def decode(self, batch: Any) -> list[Generation]:
            kept = [torch.ones(2**22) for _ in range(self._tensors)]
            del kept
            return []

    found = [peak_memory_mb(Holding(tensors), (0, ()), "cpu") for tensors in (3, 1, 2)]
    assert found == pytest.approx([64, 32, 48], abs=0.1)


def test_a_packed_weight_is_held_beside_the_original():
    if can_pack(random_model()) == "this PyTorch has no oneDNN":
        pytest.skip("needs a PyTorch with oneDNN")
    layer = torch.nn.Linear(64, 96)
    assert _bytes_of(PackedLinear(layer)) == _bytes_of(layer) + layer.weight.nbytes


def test_a_run_has_as_many_prompts_as_its_batches_take():
    grid = Throughput(scale="toy-m", prompts=64, batches=4)
    assert [grid.prompts_at(size) for size in (1, 4, 16, 32)] == [4, 16, 64, 64]
    whole = Throughput(scale="toy-m", prompts=64)
    assert whole.prompts_at(1) == 64


# --------------------------------------------------------------------------- compilation


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="torch.compile needs a C++ compiler on a CPU",
)
def test_compilation_changes_no_token():
    model = random_model(seed=3)
    asked = [Request((3, 4, 5, 6), 8), Request((7,), 8)]
    made = Decoding(decoder="mars", block_size=3, tau=0.5)
    maker = {"mask_id": MASK, "end_ids": (END,)}
    plain = make_decoder(model, None, made, **maker).generate(asked)
    compiled = make_decoder(model, None, made, compile=True, **maker).generate(asked)
    assert outline(compiled) == outline(plain)
    ends: dict[str, Any] = {"pad_id": 0, "end_ids": (END,)}
    static = TransformersGenerate(model, cache="static", **ends).generate(asked)
    fast = TransformersGenerate(model, cache="static", compile=True, **ends).generate(asked)
    assert outline(fast) == outline(static)
    torch.compiler.reset()


def test_later_methods_of_a_grid_are_compiled_too(monkeypatch):
    """They share the model's body, of which PyTorch compiles 8 programs unless told otherwise."""
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    monkeypatch.setattr(torch, "compile", lambda body, **options: body)
    make_decoder(
        random_model(), None, Decoding(decoder="ar"), mask_id=MASK, end_ids=(), compile=True
    )
    assert torch._dynamo.config.recompile_limit >= 64


def test_work_is_counted_anew():
    model = random_model()
    for decoder in (
        released(model, block=4),
        TransformersGenerate(model, cache="dynamic", pad_id=0, end_ids=()),
        make(model, decoder="ar"),
    ):
        decoder.generate([Request((3, 4), 4)])
        once = decoder.work
        assert min(vars(once).values()) > 0
        decoder.work = Work()
        decoder.generate([Request((3, 4), 4)])
        assert decoder.work == once
