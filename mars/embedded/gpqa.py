"""`toy_gpqa`: two facts composed, four options."""

from __future__ import annotations

from random import Random

from mars.embedded.facts import LINKS, RELATIONS, facts, options, state
from mars.embedded.mmlu_pro import lettered
from mars.embedded.problem import Problem
from mars.embedded.words import BEINGS, LETTERS

OPTIONS = 4


def _pair(rng: Random) -> tuple[str, str, str, str, str]:
    """A being, a link, a relation of who it leads to, the statement of both facts, the answer."""
    being, link, relation = rng.choice(BEINGS), rng.choice(LINKS), rng.choice(list(RELATIONS))
    middle = facts()[being, link]
    told = f"{state(being, link)} . {state(middle, relation)}"
    return being, link, relation, told, facts()[middle, relation]


def make(rng: Random) -> Problem:
    """One two-fact question; its key is the pair of facts."""
    being, link, relation, told, answer = _pair(rng)
    ask = rng.choice(RELATIONS[relation].forms).format(f"the {link} of {being}")
    values = options(rng, relation, answer, OPTIONS)
    letter = LETTERS[values.index(answer)]
    return Problem(
        "toy_gpqa",
        f"{ask} {lettered(values)}",
        f"{told} . {answer} is {letter} . so the answer is ( {letter} ) .",
        f"{being}-{link}-{relation}",
        letter,
    )


def plain(rng: Random) -> Problem:
    """A pair of facts in pretraining's forms, half the time with some options."""
    being, link, relation, told, answer = _pair(rng)
    ask = rng.choice(RELATIONS[relation].plain).format(f"the {link} of {being}")
    key = f"{being}-{link}-{relation}"
    if rng.random() < 0.5:
        return Problem("plain_pair", ask, f"{told} .", key, answer)
    values = options(rng, relation, answer, rng.randint(2, OPTIONS))
    letter = LETTERS[values.index(answer)]
    response = f"{told} . {answer} is {letter}"
    return Problem("plain_pair_choice", f"{ask} {lettered(values)}", response, key, letter)
