"""Pretraining's exercises in copying and looking up, which all benchmarks rest on."""

from __future__ import annotations

from random import Random

from mars.embedded.facts import RELATIONS, options
from mars.embedded.mmlu_pro import lettered
from mars.embedded.problem import Problem
from mars.embedded.words import ANIMALS, BEINGS, CITIES, COLOURS, FRUITS, JOBS, LETTERS, NAMES

ANYTHING = (
    *(*NAMES, *CITIES, *FRUITS, *COLOURS, *JOBS, *ANIMALS, *BEINGS, *LETTERS),
    *map(str, range(100)),
)


def copy(rng: Random) -> Problem:
    """Say the same words again."""
    text = " ".join(rng.sample(ANYTHING, rng.randint(3, 10)))
    return Problem("drill_copy", f"write {text}", text, "", text)


def lookup(rng: Random) -> Problem:
    """Which letters stand before some words."""
    relation = rng.choice(list(RELATIONS))
    values = options(rng, relation, RELATIONS[relation].values[0], rng.randint(2, 10))
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
