"""Conversations to train on: the benchmarks' own training items, and the world in other forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Literal

from mars.embedded import bbh, drills, gpqa, gsm8k, humaneval, ifeval, mmlu_pro
from mars.embedded.problem import Maker, Problem, distinct_items, draw, draw_new

Kind = Literal["pretrain", "sft"]
Conversation = dict[str, Any]

BENCHMARKS: dict[str, Maker] = {
    "toy_gsm8k": gsm8k.make,
    "toy_bbh": bbh.make,
    "toy_mmlu_pro": mmlu_pro.make,
    "toy_gpqa": gpqa.make,
    "toy_ifeval": ifeval.make,
    "toy_humaneval": humaneval.make,
}

DRILLS: tuple[tuple[float, Maker], ...] = (
    (4, drills.copy),
    (6, drills.lookup),
    (5, drills.recall),
    (2, drills.smaller),
)
DRILLS_FIRST = 30_000
"""Copying and looking up, which everything rests on, make up most of the first conversations."""

PRETRAIN: tuple[tuple[float, Maker], ...] = (
    *DRILLS,
    (11, partial(gsm8k.make, plain=True)),
    (9, gsm8k.drill),
    (20, partial(bbh.make, plain=True)),
    (4, mmlu_pro.tell),
    (9, mmlu_pro.plain),
    (6, gpqa.plain),
    (6, partial(ifeval.make, plain=True)),
    (8, partial(humaneval.basic, plain=True)),
    (1, gsm8k.make),
    (1, bbh.make),
    (1, mmlu_pro.make),
    (1, gpqa.make),
    (0.5, ifeval.make),
    (0.5, humaneval.basic),
)
"""The pretraining mixture: relative shares and what is drawn; harder skills have more."""


def _conversation(problem: Problem) -> Conversation:
    return {
        "messages": [
            {"role": "user", "content": problem.prompt},
            {"role": "assistant", "content": problem.response},
        ],
        "task": problem.task,
    }


def _pretrain(seed: int, start: int) -> Iterator[Conversation]:
    index = start
    while True:
        rng = Random(f"pretrain/{seed}/{index}")
        early = index < DRILLS_FIRST and rng.random() < 0.7
        weights, makers = zip(*(DRILLS if early else PRETRAIN), strict=True)
        make: Callable[[Random], Problem] = rng.choices(makers, weights)[0]
        yield _conversation(draw(make, rng, test=False))
        index += 1


def _sft(seed: int) -> Iterator[Conversation]:
    """Benchmarks in turn, all prompts distinct."""
    seen, makers, index = set[str](), list(BENCHMARKS.values()), 0
    while True:
        rng = Random(f"sft/{seed}/{index}")
        yield _conversation(draw_new(makers[index % len(makers)], rng, seen, test=False))
        index += 1


def conversations(kind: Kind, n: int, seed: int, start: int = 0) -> Iterator[Conversation]:
    """`n` training conversations from number `start` on; none shares a key with a test item.

    Number `i` of a seed is always the same, so `[0, n)` and `[n, m)` are two disjoint stages.
    With `sft` all prompts are distinct.
    """
    if kind == "pretrain":
        return islice(_pretrain(seed, start), n)
    if kind == "sft":
        return islice(_sft(seed), start, start + n)
    raise ValueError(f"unknown corpus {kind!r}: use 'pretrain' or 'sft'")


def held_out_items(task: str, n: int, seed: int) -> list[Problem]:
    """`n` held-out items of a benchmark, or of one sub-task `toy_bbh_<name>`."""
    prefix = "toy_bbh_"
    if task.startswith(prefix):
        return list(distinct_items(bbh.SUBTASKS[task.removeprefix(prefix)], n, seed, task))
    return list(distinct_items(BENCHMARKS[task], n, seed, task))
