"""What every toy benchmark is made of: a problem, and the rule that splits train from test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

TEST_ITEMS = 420
"""Default number of test items of a benchmark."""

TEST_SEED = 20260
"""Default seed of the test items."""

HELD_OUT_ONE_IN = 5
"""One normalised problem in this many is kept for the test."""

DRAWS = 10_000
"""How many draws in vain show that a benchmark has no more distinct prompts."""


@dataclass(frozen=True)
class Problem:
    """One question with its worked answer.

    `key` is the normalised problem (names, order of numbers and phrasing removed), `answer` what
    the grader compares with, `extra` whatever else a grader needs (JSON-able).
    """

    task: str
    prompt: str
    response: str
    key: str
    answer: str
    extra: dict[str, Any] = field(default_factory=dict)


Maker = Callable[[Random], Problem]
"""Draws one problem, held out or not."""


def held_out(key: str) -> bool:
    """Whether problems with this normalised key belong to the test; an empty key never does."""
    if not key:
        return False
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def numbers_key(skeleton: str, numbers: list[int]) -> str:
    """The key of a problem given by its operations and its numbers, in whatever order."""
    return f"{skeleton}|{','.join(map(str, sorted(numbers)))}"


def draw(make: Maker, rng: Random, test: bool) -> Problem:
    """A problem from `make` on the wanted side of the split."""
    while True:
        problem = make(rng)
        if held_out(problem.key) == test:
            return problem


def draw_new(make: Maker, rng: Random, seen: set[str], test: bool) -> Problem:
    """A problem on the wanted side of the split whose prompt is not among `seen`; adds it there."""
    for _ in range(DRAWS):
        problem = draw(make, rng, test)
        if problem.prompt not in seen:
            seen.add(problem.prompt)
            return problem
    raise ValueError(f"no new problem in {DRAWS} draws after {len(seen)}: ask for fewer items")


def distinct_items(make: Maker, n: int, seed: int, name: str) -> Iterator[Problem]:
    """`n` held-out problems with distinct prompts."""
    rng, seen = Random(f"test/{name}/{seed}"), set[str]()
    for _ in range(n):
        yield draw_new(make, rng, seen, test=True)
