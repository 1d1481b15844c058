"""Slots, arrivals, thresholds that change, drafts of any length: none of them changes a token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.decoding import DecodingError, Engine, Request, Work
from mars.decoding import engine as engine_module
from mars.decoding import rows as rows_module
from mars.decoding.base import BoundDecoder
from mars.decoding.mars import MarsDecoder

from .test_equalities import REQUESTS, TAUS, some_requests
from .tiny_models import ARCHITECTURES, MASK, PROPERTY, decode, make, outline, random_model

FEW = settings(PROPERTY, max_examples=25)
METHODS = {
    "cursor": ({}, {}),
    "block": ({"cache": "block", "cache_block": 3}, {"cache_block": 3}),
    "none": ({"cache": "none"}, {}),
}


def serve(engine: Engine, requests: list[Request], arrivals: list[int], each_round=lambda: None):
    """Submit request i before round ``arrivals[i]``; returns the generations by number."""
    done, rounds = {}, 0
    waiting = sorted(range(len(requests)), key=lambda i: arrivals[i])
    order = list(waiting)
    while waiting or engine.active or engine.waiting:
        while waiting and arrivals[waiting[0]] <= rounds:
            engine.submit(requests[waiting.pop(0)])
        each_round()
        done |= dict(engine.step())
        rounds += 1
    return [done[order.index(i)] for i in range(len(requests))]


@FEW
@given(
    requests=REQUESTS,
    arrivals=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    slots=st.integers(1, 4),
    prefill=st.sampled_from([1, 4, 7, 100]),
    size=st.integers(1, 5),
    tau=TAUS,
    method=st.sampled_from(sorted(METHODS)),
)
def test_slots_and_arrivals_change_nothing(requests, arrivals, slots, prefill, size, tau, method):
    cache, reference = METHODS[method]
    settings_ = {"decoder": "mars", "block_size": size, "tau": tau}
    apart = [decode([r], cache="none", **reference, **settings_)[0] for r in requests]
    engine = Engine(make(**settings_, **cache), slots, 44, prefill=prefill)
    assert outline(serve(engine, requests, arrivals)) == outline(apart)


@pytest.mark.parametrize("decoder", ["ar", "jacobi", "block_diffusion"])
@pytest.mark.parametrize("slots", [1, 3])
def test_every_method_takes_slots(decoder, slots):
    method = {"decoder": decoder} | ({} if decoder == "ar" else {"block_size": 4})
    if decoder == "block_diffusion":
        method["tau"] = 0.5
    requests = some_requests(9, seed=3)
    apart = [make(cache="none", **method).generate([r])[0] for r in requests]
    assert outline(make(**method).generate(requests, slots)) == outline(apart)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("prefill", [3, 100])
def test_a_prompt_shares_a_forward_with_the_rows_in_flight(architecture, prefill, monkeypatch):
    """It changes no token against a forward of its own, and there are fewer forwards."""
    requests = some_requests(24, seed=4, budget=20)
    decoder = make(random_model(architecture), decoder="mars", block_size=4, tau=0.6)

    def run():
        decoder.work = Work()
        made = serve(Engine(decoder, 5, 60, prefill=prefill), requests, [0] * 24)
        return outline(made), decoder.work

    found, together = run()
    monkeypatch.setattr(type(decoder), "round", BoundDecoder.round)
    expected, apart = run()
    assert found == expected
    assert together.forwards < apart.forwards
    assert together.tokens <= apart.tokens  # nothing is padded to a prompt


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_all_lengths_come_and_go(architecture):
    """Much is accepted here, windows are ragged and so packed, and slots are used again."""
    model = random_model(architecture)
    requests = some_requests(24, seed=11, budget=30)
    method = {"decoder": "mars", "block_size": 4, "tau": 0.6}
    decoder = make(model, **method)
    found = decoder.generate(requests, 5)
    assert outline(found) == outline(make(model, cache="none", **method).generate(requests))
    padded = Work()
    for packed in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mars.decoding.backbone.PACK_BELOW", 1.0 if packed else 0.0)
            decoder.work = Work()
            assert outline(decoder.generate(requests, 5)) == outline(found)
            padded, work = decoder.work, padded
    assert padded.tokens < work.tokens
    assert padded.forwards == work.forwards


class Given(MarsDecoder):
    """Drafts of lengths that were drawn, by the row and how many forwards it had."""

    def draft_lengths(self, rows):
        draw = (rows["index"] * 7 + rows["forwards"] * 3) % self.width
        return draw + 1


@FEW
@given(requests=REQUESTS, slots=st.integers(1, 4), tau=TAUS)
def test_drafts_of_any_length(requests, slots, tau):
    """Whatever the lengths: cached and cache-free, alone and together, the same."""
    made = {
        cache: _given(cache=cache, block_size=5, tau=tau, decoder="mars")
        for cache in ("cursor", "none")
    }
    engine = Engine(made["none"], len(requests), 44)
    reference = serve(engine, requests, [0] * len(requests))
    engine = Engine(made["cursor"], slots, 44)
    assert outline(serve(engine, requests, [0] * len(requests))) == outline(reference)


def _given(**settings_):
    from mars.config import Decoding
    from mars.decoding import make_decoder

    return make_decoder(
        random_model(), None, Decoding(**settings_), mask_id=MASK, end_ids=(1,), method=Given
    )


def test_tau_changes_while_rows_are_in_flight():
    """From a step on, each row decodes as one does that had the new threshold from there."""
    requests = some_requests(5, seed=7, budget=20)
    method = {"decoder": "mars", "block_size": 4, "tau": 0.5}
    change = {3: 1.0, 6: 0.9, 9: 0.3}

    def run(cache: str, slots: int, only: list[Request]):
        engine = Engine(make(cache=cache, **method), slots, 48)
        rounds = iter(range(1000))

        def turn():
            if (number := next(rounds)) in change:
                engine.set_tau(change[number])

        return outline(serve(engine, only, [0] * len(only), turn))

    together = run("cursor", 5, requests)
    assert together == [run("none", 1, [r])[0] for r in requests]
    for _, accepted, _ in together:
        assert set(accepted[3:6]) <= {1}
    assert any(max(accepted[9:], default=1) > 1 for _, accepted, _ in together)


def test_tau_of_one_request():
    requests = [Request(r.prompt_ids, 12) for r in some_requests(3, seed=2)]
    engine = Engine(make(decoder="mars", block_size=4, tau=0.3, end_ids=()), 2, 48)
    for request in requests:
        engine.submit(request)
    engine.set_tau(1.0, index=0)  # waits still
    engine.set_tau(1.0, index=2)
    found = dict(engine.step())
    engine.set_tau(0.3, index=0)  # is in flight
    while engine.active or engine.waiting:
        found |= dict(engine.step())
    assert found[0].accepted[0] == 1
    assert max(found[0].accepted[1:]) > 1
    assert max(found[1].accepted) > 1
    assert set(found[2].accepted) == {1}


def test_a_threshold_for_all_copies_no_request_that_has_none(monkeypatch):
    """It is set before each step where it follows the load."""
    engine = Engine(make(decoder="mars", block_size=4, tau=0.3, end_ids=()), 1, 48)
    for tau in (None, 0.9, None):
        engine.submit(Request((3, 4, 5), 12, tau=tau))
    copied = []
    copy = engine_module.replace
    monkeypatch.setattr(
        engine_module, "replace", lambda one, **new: copied.append(one.tau) or copy(one, **new)
    )
    engine.set_tau(1.0)
    assert copied == [0.9]
    engine.set_tau(1.0)
    assert copied == [0.9]
    while engine.active or engine.waiting:
        for _, made in engine.step():
            assert set(made.accepted) == {1}


@pytest.mark.parametrize("slots", [2, 16])
@pytest.mark.parametrize("cache", [{}, {"cache": "block", "cache_block": 4}])
def test_the_backlog_is_what_a_step_leaves_waiting(slots, cache):
    """Of 16 slots one that is free stays so, until another is."""
    engine = Engine(make(decoder="mars", block_size=4, tau=0.6, end_ids=(), **cache), slots, 40)
    for number in range(slots + 5):
        engine.submit(Request((3 + number % 7, 4, 5), 4 + 3 * number % 7))
    counts = set()
    while engine.active or engine.waiting:
        expected = engine.backlog
        counts.add(engine.active + engine.waiting - slots == expected)
        engine.step()
        assert engine.waiting == expected
    assert False in counts or slots == 2


def test_what_is_in_flight_can_be_read():
    request = some_requests(1, seed=5, budget=30)[0]
    engine = Engine(make(decoder="mars", block_size=4, tau=0.6, end_ids=()), 1, 60)
    engine.submit(request)
    assert (engine.active, engine.waiting, engine.so_far(0)) == (0, 1, [])
    seen, found = [[]], []
    while not found:
        found = engine.step()
        if engine.active:
            seen.append(engine.so_far(0))
    generation = found[0][1]
    assert seen == [generation.ids[: sum(generation.accepted[:n])] for n in range(len(seen))]
    assert len(seen) == generation.forwards
    assert 0 < generation.seconds < 60


def test_stream_gives_each_as_it_ends():
    requests = [Request((3, 4), n) for n in (9, 2, 5)]
    decoder = make(decoder="ar", end_ids=())
    assert [index for index, _ in decoder.stream(requests)] == [1, 2, 0]
    assert [index for index, _ in decoder.stream(requests, 1)] == [0, 1, 2]
    longest_first = [Request((3,) * n, 2) for n in (2, 5, 3)]
    assert [index for index, _ in decoder.stream(longest_first, 1)] == [1, 2, 0]


def test_work_counted_by_hand():
    decoder = make(decoder="ar", end_ids=())
    decoder.generate([Request((3, 4, 5), 3), Request((6, 7, 8), 2)])
    # prefill: 2 rows of 3 columns; a step of both, 4 columns read; one of the longer, 5 read
    assert decoder.work == Work(
        forwards=3, tokens=6 + 2 + 1, heads=2 + 2 + 1, keys=18 + 8 + 5, cached=6 + 8 + 5
    )


def test_errors_name_the_remedy(monkeypatch):
    decoder = make(decoder="mars", block_size=4, tau=0.5)
    engine = Engine(decoder, 2, 10)
    with pytest.raises(DecodingError, match=r"request 0: 8 tokens of prompt and 3 .* 10 columns"):
        engine.submit(Request((2,) * 8, 3))
    engine.submit(Request((2,) * 7, 3))
    for tau in (0.0, 1.5):
        with pytest.raises(DecodingError, match="must lie in"):
            engine.set_tau(tau)
    with pytest.raises(DecodingError, match="request 4 is neither"):
        engine.set_tau(0.5, index=4)
    with pytest.raises(DecodingError, match="no threshold"):
        Engine(make(decoder="ar"), 1, 10).set_tau(0.5)
    with pytest.raises(DecodingError, match="slots is 0"):
        decoder.generate([Request((2,), 3)], 0)
    with pytest.raises(DecodingError, match="slots is 0"):
        Engine(decoder, 0, 10)  # its requests would wait for good
    # 2 layers of keys and values, 2 heads of 8 float64
    column = 2 * 2 * 2 * 8 * 8
    monkeypatch.setattr(rows_module, "free_bytes", lambda device: 3 * column * (10 + 8) + 1)
    Engine(decoder, 3, 10)
    with pytest.raises(DecodingError, match=r"cache of 4 rows of 18 columns .* at most 3 rows fit"):
        Engine(decoder, 4, 10)


def test_each_device_holds_the_keys_of_its_own_layers(monkeypatch):
    first, second, third = (torch.device("cuda", number) for number in range(3))
    decoder = make(decoder="ar")
    assert decoder.backbone.bytes_per_column == {torch.device("cpu"): 2 * 2 * 2 * 8 * 8}
    decoder.backbone.bytes_per_column = {first: 100, second: 300, third: 100}
    free = {first: 100 * 11 * 4, second: 300 * 11 * 4 - 1, third: 100 * 11 * 9}
    monkeypatch.setattr(rows_module, "free_bytes", free.get)
    columns = 11 - decoder.spare(decoder.policy())
    Engine(decoder, 3, columns)
    with pytest.raises(DecodingError, match=r"free on cuda:1: at most 3 rows fit"):
        Engine(decoder, 5, columns)


def test_what_torch_holds_unused_on_a_gpu_is_free(monkeypatch):
    facts = {"mem_get_info": (1000, 9000), "memory_reserved": 700, "memory_allocated": 400}
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, fact=fact: fact)
    assert rows_module.free_bytes(torch.device("cuda", 0)) == 1000 + 700 - 400


def test_a_row_that_moves_keeps_all_it_has():
    """Fresh rows stay behind the others when rows before them leave."""
    decoder = make(decoder="mars", block_size=4, tau=0.6, end_ids=())
    engine = Engine(decoder, 4, 60, prefill=3)
    short = [Request((3 + i,) * 2, 2 + i) for i in range(3)]
    long = Request(tuple(range(2, 22)), 20)
    for request in [*short, long]:
        engine.submit(request)
    found, fresh = {}, []
    while engine.active or engine.waiting:
        found |= dict(engine.step())
        fresh.append(engine._batch.fresh)
        rows = engine._batch.rows
        assert (
            rows["cached"][len(rows) - fresh[-1] :] < rows["prompt"][len(rows) - fresh[-1] :]
        ).all()
    assert fresh[:4] != [0] * 4
    assert outline([found[i] for i in range(4)]) == outline(
        [decode([r], decoder="mars", block_size=4, tau=0.6, end_ids=())[0] for r in [*short, long]]
    )


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_rest_of_a_long_prompt_beside_another(method):
    """A prompt that is part way in and one that begins are windows at far apart columns."""
    cache, reference = METHODS[method]
    settings_ = {"decoder": "mars", "block_size": 4, "tau": 0.6}
    prompts = [tuple((3 + i + start) % 25 + 2 for i in range(40)) for start in range(3)]
    requests = [Request(prompt, budget) for prompt, budget in zip(prompts, (1, 6, 3), strict=True)]
    apart = [decode([r], cache="none", **reference, **settings_)[0] for r in requests]
    for prefill in (16, 30, 39):
        engine = Engine(make(**settings_, **cache), 3, 46, prefill=prefill)
        assert outline(serve(engine, requests, [0, 0, 1])) == outline(apart)


def test_short_prompts_beside_a_long_one_are_not_padded_to_its_width():
    engine = Engine(make(decoder="ar", end_ids=()), 8, 70, prefill=32)
    for request in [*[Request((3, 4), 9)] * 7, Request(tuple(range(2, 22)) * 3, 2)]:
        engine.submit(request)
    engine.step()
    assert engine._decoder.work.keys == 7 * 2 * 2
    found = []
    while engine.active or engine.waiting:
        found += engine.step()
    assert found[0][0] == 7


def test_prompts_go_in_in_the_order_in_which_they_came():
    """A row that leaves lets none of the fresh ones overtake another."""
    engine = Engine(make(decoder="ar", end_ids=()), 4, 40, prefill=4)
    for _ in range(6):
        engine.submit(Request((3, 4, 5, 6, 7, 8), 2))
    first: list[int] = []
    while engine.active or engine.waiting:
        ended = dict(engine.step())
        first += [n for n in range(6) if n not in first and (n in ended or engine.so_far(n))]
    assert first == list(range(6))


def test_a_prefill_waits_for_company_where_slots_are_many():
    """Of 16 slots two must be free, but the last request that waits does not wait for another."""
    requests = [Request((2, 3), 5 + i % 16) for i in range(19)]
    decoder = make(decoder="ar", end_ids=())
    engine = Engine(decoder, 16, 30)
    for request in requests:
        engine.submit(request)
    found, came, active = {}, [], 0
    while engine.active or engine.waiting:
        left = dict(engine.step())
        came.append(engine.active + len(left) - active)
        active = engine.active
        found |= left
    assert [count for count in came if count] == [16, 2, 1]
    assert outline([found[i] for i in range(19)]) == outline(decoder.generate(requests))
