"""Pretraining's exercises in copying and looking up, which all benchmarks rest on."""

from __future__ import annotations

from random import Random

from mars.embedded.facts import RELATIONS
from mars.embedded.mmlu_pro import lettered
from mars.embedded.problem import Problem
from mars.embedded.words import ANIMALS, BEINGS, CITIES, COLOURS, FRUITS, JOBS, LETTERS, NAMES

KINDS = (NAMES, CITIES, FRUITS, COLOURS, JOBS, ANIMALS, LETTERS)
ANYTHING = (*(word for kind in KINDS for word in kind), *BEINGS, *map(str, range(100)))


def copy(rng: Random) -> Problem:
    """Say the same words again, and again; half the time words of one kind."""
    words = rng.choice(KINDS) if rng.random() < 0.5 else ANYTHING
    text = " ".join(rng.sample(words, rng.randint(2, min(8, len(words)))))
    times = rng.randint(1, 4)
    said = " ".join([text] * times)
    return Problem("drill_copy", f"write {times} times {text}", said, "", said)


def lookup(rng: Random) -> Problem:
    """Which letters stand before some words."""
    relation = rng.choice(list(RELATIONS))
    values = rng.sample(RELATIONS[relation].values, rng.randint(2, 10))
    asked = rng.sample(values, min(len(values), rng.randint(1, 4)))
    found = " , ".join(f"{value} is {LETTERS[values.index(value)]}" for value in asked)
    return Problem("drill_lookup", f"find {' '.join(asked)} : {lettered(values)}", found, "", found)


def recall(rng: Random) -> Problem:
    """Which number, or word, goes with some names."""
    n = rng.randint(2, 5)
    names, values = rng.sample(ANYTHING, n), rng.sample(ANYTHING, n)
    pairs = dict(zip(names, values, strict=True))
    asked = rng.sample(names, rng.randint(1, n))
    told = " , ".join(f"{name} has {value}" for name, value in pairs.items())
    found = " , ".join(f"{name} has {pairs[name]}" for name in asked)
    return Problem("drill_recall", f"{told} . find {' '.join(asked)}", found, "", found)


def smaller(rng: Random) -> Problem:
    """Put two numbers in order."""
    given = rng.sample(range(100), 2)
    found = " ".join(map(str, sorted(given)))
    return Problem("drill_smaller", f"order {' '.join(map(str, given))}", found, "", found)
