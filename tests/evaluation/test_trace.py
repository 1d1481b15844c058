"""Requests that arrive over time: drawn by a seed, served once each, under a policy's τ."""

from __future__ import annotations

import statistics
from collections import deque
from itertools import pairwise

import pytest
from decoding.tiny_models import END, MASK, random_model

from mars.config import Decoding, Trace
from mars.decoding import Generation, Request, make_decoder
from mars.decoding.engine import Engine
from mars.evaluation.throughput.trace import (
    Arrival,
    Clock,
    controller,
    draw_arrivals,
    fixed,
    policies,
    serve,
    service_rate,
)

SLOTS = 2
TRACE = Trace(slots=SLOTS, requests=[4, 12, 4], loads=[0.5, 4.0, 0.25], patience=4)


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class FakeEngine:
    """A step takes a second; a row yields one token in it, or two at a threshold below 0.9."""

    def __init__(self, watch: Watch, slots: int = SLOTS) -> None:
        self.watch, self.slots, self.tau = watch, slots, 0.0
        self.queue: deque[tuple[int, Request]] = deque()
        self.rows: dict[int, tuple[Request, Generation]] = {}
        self.begun: dict[int, tuple[float, float]] = {}  # of each request: second and τ
        self.ended: dict[int, tuple[float, float]] = {}
        self.waited: list[tuple[int, float]] = []  # of each step: requests without a slot, and τ
        self.submitted: list[float] = []

    @property
    def active(self) -> int:
        return len(self.rows)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def backlog(self) -> int:
        return max(0, self.active + self.waiting - self.slots)

    def submit(self, request: Request) -> int:
        self.queue.append((len(self.submitted), request))
        self.submitted.append(self.watch.time)
        return len(self.submitted) - 1

    def set_tau(self, tau: float) -> None:
        self.tau = tau

    def so_far(self, index: int) -> list[int]:
        return self.rows[index][1].ids if index in self.rows else []

    def step(self) -> list[tuple[int, Generation]]:
        while self.queue and len(self.rows) < self.slots:
            number, request = self.queue.popleft()
            self.rows[number] = request, Generation()
            self.begun[number] = self.watch.time, self.tau
        assert self.rows, "a step with nothing to do"
        self.waited.append((len(self.queue), self.tau))
        self.watch.time += 1.0
        done = []
        for number, (request, made) in self.rows.items():
            new = min(2 if self.tau < 0.9 else 1, request.max_new_tokens - len(made.ids))
            made.ids += [7] * new
            made.accepted.append(new)
            if len(made.ids) == request.max_new_tokens:
                done.append((number, made))
        for number, _ in done:
            del self.rows[number]
            self.ended[number] = self.watch.time, self.tau
        return done


def asked(count: int, tokens: int = 4) -> list[Request]:
    return [Request((1, 2), tokens + number % 3) for number in range(count)]


def run(policy, rate: float = 0.5, trace: Trace = TRACE):
    watch = Watch()
    engine = FakeEngine(watch)
    arrivals = draw_arrivals(trace, 0, rate)
    clock = Clock(watch)
    served = serve(engine, asked(len(arrivals)), arrivals, policy, clock)
    return served, engine, clock


# ---- arrivals


def test_a_seed_draws_the_same_arrivals_whatever_the_machines_rate():
    first = draw_arrivals(TRACE, 3, 1.0)
    assert draw_arrivals(TRACE, 3, 1.0) == first
    assert draw_arrivals(TRACE, 4, 1.0) != first
    faster = draw_arrivals(TRACE, 3, 10.0)
    assert [a.at * 10 for a in faster] == pytest.approx([a.at for a in first])


def test_each_phase_has_its_requests_at_its_load():
    trace = Trace(requests=[2000, 3000], loads=[0.5, 2.0])
    arrivals = draw_arrivals(trace, 0, rate=10.0)
    assert [a.phase for a in arrivals] == [0] * 2000 + [1] * 3000
    gaps = [after.at - before.at for before, after in pairwise(arrivals)]
    assert min(gaps) >= 0
    for part, load in ((gaps[:1999], 0.5), (gaps[2000:], 2.0)):
        assert statistics.fmean(part) == pytest.approx(1 / (load * 10), rel=0.06)
        assert statistics.stdev(part) == pytest.approx(1 / (load * 10), rel=0.08)  # as Poisson's


# ---- policies


def test_the_controller_goes_down_in_a_line_with_the_queue():
    tau = controller(Trace(tau_high=0.9, tau_low=0.5, patience=4))
    assert [tau(n) for n in (0, 1, 2, 4, 9)] == pytest.approx([0.9, 0.8, 0.7, 0.5, 0.5])


def test_policies_are_the_fixed_ones_and_the_controller():
    assert list(policies(Trace(thresholds=[1.0, 0.95, 0.7]))) == [
        "tau 1",
        "tau 0.95",
        "tau 0.7",
        "controller",
    ]


# ---- serving


@pytest.mark.parametrize("policy", [fixed(1.0), fixed(0.5), controller(TRACE)])
def test_every_request_finishes_once_and_its_times_are_in_order(policy):
    served, engine, _ = run(policy)
    assert len(served) == sum(TRACE.requests) == len(engine.ended)
    for number, (one, request) in enumerate(zip(served, asked(len(served)), strict=True)):
        assert one.generation.tokens == request.max_new_tokens
        assert one.arrival.at <= one.start < one.first_token <= one.finish
        seconds = engine.ended[number][0] - engine.begun[number][0]
        assert one.finish - one.start == pytest.approx(seconds)
        assert one.first_token - one.start == pytest.approx(1.0)
        assert one.latency == one.finish - one.arrival.at


def test_a_requests_thresholds_are_those_of_its_first_and_last_step():
    served, engine, _ = run(controller(TRACE))
    assert [one.tau_start for one in served] == [engine.begun[n][1] for n in range(len(served))]
    assert [one.tau_end for one in served] == [engine.ended[n][1] for n in range(len(served))]
    assert any(one.tau_start != one.tau_end for one in served)


def test_the_controller_lowers_the_threshold_while_requests_wait_and_raises_it_again():
    _, engine, _ = run(controller(TRACE))
    policy = controller(TRACE)
    assert [tau for _, tau in engine.waited] == [policy(waiting) for waiting, _ in engine.waited]
    taus = [tau for _, tau in engine.waited]
    assert taus[0] == TRACE.tau_high == taus[-1]
    assert min(taus) == TRACE.tau_low


def test_a_threshold_lowered_under_load_shortens_the_wait():
    patient, _, _ = run(fixed(TRACE.tau_high))
    adapted, _, _ = run(controller(TRACE))
    assert [one.arrival for one in patient] == [one.arrival for one in adapted]
    mean = [statistics.fmean(one.latency for one in served) for served in (patient, adapted)]
    assert mean[1] < 0.8 * mean[0]


def test_the_queue_is_what_waits_when_a_request_comes():
    watch = Watch()
    engine = FakeEngine(watch)
    arrivals = [Arrival(0, at) for at in (0.0, 0.0, 0.0, 0.5, 0.6, 50.0)]
    served = serve(engine, asked(6), arrivals, fixed(1.0), Clock(watch))
    assert [one.queue for one in served] == [0, 0, 0, 1, 2, 0]


def test_idle_time_is_jumped_over():
    watch = Watch()
    engine = FakeEngine(watch)
    arrivals = [Arrival(0, 10.0), Arrival(0, 1000.0)]
    clock = Clock(watch)
    served = serve(engine, asked(2), arrivals, fixed(1.0), clock)
    assert [one.start for one in served] == [10.0, 1000.0]
    assert watch.time == 100.0 + 4 + 5  # what the steps took, and nothing more
    assert clock() - clock.jumped == 9.0
    assert served[1].finish == 1005.0


def test_a_step_is_not_interrupted_by_an_arrival():
    watch = Watch()
    engine = FakeEngine(watch)
    arrivals = [Arrival(0, 0.0), Arrival(0, 1.5)]
    served = serve(engine, asked(2), arrivals, fixed(1.0), Clock(watch))
    assert served[1].start == 2.0


def test_the_service_rate_is_that_of_full_slots():
    watch = Watch()
    requests = [Request((1,), 4)] * 6
    assert service_rate(FakeEngine(watch), requests, 1.0, Clock(watch)) == 6 / 12
    watch = Watch()
    assert service_rate(FakeEngine(watch), requests, 0.5, Clock(watch)) == 6 / 6


def test_the_real_engine_gives_each_request_its_own_answer():
    decoder = make_decoder(
        random_model(),
        None,
        Decoding(decoder="mars", block_size=4, tau=0.5),
        mask_id=MASK,
        end_ids=(END,),
    )
    requests = [Request((3 + n, 5, 7), 5 + n % 4) for n in range(sum(TRACE.requests))]
    columns = max(decoder.end(request) for request in requests)

    class Ticking(Watch):
        def __call__(self) -> float:
            self.time += 0.5
            return self.time

    arrivals = draw_arrivals(TRACE, 0, rate=0.2)
    engine = Engine(decoder, SLOTS, columns)
    served = serve(engine, requests, arrivals, fixed(0.5), Clock(Ticking()))
    alone = decoder.generate(requests, slots=1)
    assert [one.generation.ids for one in served] == [made.ids for made in alone]
    assert [one.generation.accepted for one in served] == [made.accepted for made in alone]
    engine = Engine(decoder, SLOTS, columns)
    served = serve(engine, requests, arrivals, controller(TRACE), Clock(Ticking()))
    assert len({one.tau_start for one in served}) > 1
    assert all(one.generation.tokens for one in served)
