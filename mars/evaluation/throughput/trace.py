"""Requests that arrive over time, served by the engine under a policy that sets τ.

The trace's clock is busy time: it runs with the engine's steps, and where nothing is in flight and
nothing waits it jumps to the next arrival, so that quiet phases cost no waiting.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mars.config import Trace
from mars.decoding.contract import Generation, Request

Policy = Callable[[int], float]
"""The threshold of every request in flight, given how many wait."""


@dataclass(frozen=True)
class Arrival:
    """When a request comes, and in which phase of the trace; ``at`` is in seconds."""

    phase: int
    at: float


def draw_arrivals(trace: Trace, seed: int, rate: float) -> list[Arrival]:
    """A Poisson process in each phase, one after the other.

    Args:
        trace: its requests and loads.
        seed: the same seed draws the same arrivals, but for the unit of time.
        rate: requests/s that the engine serves; a phase's arrivals come at ``load * rate``.
    """
    source = random.Random(f"arrivals of seed {seed}")
    found, at = [], 0.0
    for phase, (count, load) in enumerate(zip(trace.requests, trace.loads, strict=True)):
        for _ in range(count):
            at += source.expovariate(1.0) / (load * rate)
            found.append(Arrival(phase, at))
    return found


def fixed(tau: float) -> Policy:
    """The same threshold always."""
    return lambda waiting: tau


def controller(trace: Trace) -> Policy:
    """From ``tau_high`` where nothing waits, in a line to ``tau_low`` where ``patience`` do."""

    def tau(waiting: int) -> float:
        impatience = min(1.0, waiting / trace.patience)
        return trace.tau_high - (trace.tau_high - trace.tau_low) * impatience

    return tau


def policies(trace: Trace) -> dict[str, Policy]:
    """Every policy of a trace, by its name in the results."""
    made = {f"tau {tau:g}": fixed(tau) for tau in trace.thresholds}
    return made | {"controller": controller(trace)}


class Clock:
    """Seconds since it was made, and those that were jumped over.

    Args:
        now: the machine's clock.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._begin = now, now()
        self.jumped = 0.0

    def __call__(self) -> float:
        return self._now() - self._begin + self.jumped

    def jump(self, to: float) -> float:
        """Go on from a later time at once; returns the time it is then."""
        self.jumped += max(0.0, to - self())
        return max(to, self())


class Serving(Protocol):
    """What of ``mars.decoding.engine.Engine`` a trace uses."""

    @property
    def active(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    def submit(self, request: Request) -> int: ...
    def set_tau(self, tau: float) -> None: ...
    def step(self) -> list[tuple[int, Generation]]: ...
    def so_far(self, index: int) -> list[int]: ...


@dataclass
class Served:
    """What became of a request. Times are in seconds on the trace's clock.

    Attributes:
        arrival: when it came; queue: how many were waiting for a slot then.
        start: when it got a slot; tau_start: the threshold then.
        first_token: the end of the step that yielded its first token.
        finish: the end of its last step; tau_end: the threshold of that step.
        generation: its response.
    """

    arrival: Arrival
    queue: int
    start: float = 0.0
    tau_start: float = 0.0
    first_token: float | None = None
    finish: float = 0.0
    tau_end: float = 0.0
    generation: Generation = field(default_factory=Generation)

    @property
    def latency(self) -> float:
        """Seconds from its arrival to its end."""
        return self.finish - self.arrival.at


def serve(
    engine: Serving,
    requests: Sequence[Request],
    arrivals: Sequence[Arrival],
    policy: Policy,
    clock: Clock,
) -> list[Served]:
    """Have an idle, new engine answer requests as they arrive.

    Args:
        engine: requests take its slots in the order in which they came.
        requests: N; arrivals: N, in the order of time.
        policy: asked before each step for the threshold of all rows in flight.
        clock: the trace's.

    Returns:
        N, in the order of the requests.
    """
    served: list[Served] = []
    unfinished = _Unfinished(engine, served)
    ended = 0
    while ended < len(requests):
        now = clock()
        if not engine.active and not engine.waiting:
            now = clock.jump(arrivals[len(served)].at)
        while len(served) < len(requests) and arrivals[len(served)].at <= now:
            served.append(Served(arrivals[len(served)], engine.backlog))
            engine.submit(requests[len(served) - 1])
        tau = policy(engine.backlog)
        engine.set_tau(tau)
        before = clock()
        finished = dict(engine.step())
        unfinished.note(before, clock(), tau, finished)
        ended += len(finished)
    return served


class _Unfinished:
    """What a step says about the requests that have not ended."""

    def __init__(self, engine: Serving, served: list[Served]) -> None:
        self._engine, self._served = engine, served
        self._begun = 0  # requests that have had a slot
        self._silent: list[int] = []  # of these, those that have yielded nothing yet

    def note(
        self, before: float, after: float, tau: float, finished: Mapping[int, Generation]
    ) -> None:
        """Write down a step from ``before`` to ``after`` at threshold ``tau``."""
        begun = len(self._served) - self._engine.waiting
        for number in range(self._begun, begun):
            self._served[number].start, self._served[number].tau_start = before, tau
        self._silent += range(self._begun, begun)
        self._begun = begun
        for number in self._silent:
            if number in finished or self._engine.so_far(number):
                self._served[number].first_token = after
        self._silent = [n for n in self._silent if self._served[n].first_token is None]
        for number, generation in finished.items():
            one = self._served[number]
            one.finish, one.tau_end, one.generation = after, tau, generation


def service_rate(engine: Serving, requests: Sequence[Request], tau: float, clock: Clock) -> float:
    """Requests/s that an engine serves where all of them wait from the start."""
    at_once = [Arrival(0, 0.0)] * len(requests)
    serve(engine, requests, at_once, fixed(tau), clock)
    return len(requests) / (clock() - clock.jumped)
