"""`toy_mmlu_pro`: one fact, ten options."""

from __future__ import annotations

from random import Random

from mars.embedded.facts import RELATIONS, facts, options, state
from mars.embedded.problem import Problem
from mars.embedded.words import BEINGS, LETTERS

OPTIONS = 10


def lettered(values: list[str]) -> str:
    """Options as they stand in a prompt: `A fig B plum`."""
    return " ".join(f"{letter} {v}" for letter, v in zip(LETTERS, values, strict=False))


def make(rng: Random) -> Problem:
    """One ten-option question; its key is the fact and the question form."""
    being, relation = rng.choice(BEINGS), rng.choice(list(RELATIONS))
    form = rng.randrange(len(RELATIONS[relation].forms))
    answer = facts()[being, relation]
    values = options(rng, relation, answer, OPTIONS)
    letter = LETTERS[values.index(answer)]
    return Problem(
        "toy_mmlu_pro",
        f"{RELATIONS[relation].forms[form].format(being)} {lettered(values)}",
        f"{state(being, relation)} . {answer} is {letter} . so the answer is ( {letter} ) .",
        f"{being}-{relation}-{form}",
        letter,
    )


def plain(rng: Random) -> Problem:
    """A fact asked for in pretraining's forms, half the time with some options."""
    being, relation = rng.choice(BEINGS), rng.choice(list(RELATIONS))
    ask = rng.choice(RELATIONS[relation].plain).format(being)
    answer = facts()[being, relation]
    if rng.random() < 0.5:
        return Problem("plain_fact", ask, f"{state(being, relation)} .", "", answer)
    values = options(rng, relation, answer, rng.randint(2, OPTIONS))
    letter = LETTERS[values.index(answer)]
    response = f"{state(being, relation)} . {answer} is {letter}"
    return Problem("plain_choice", f"{ask} {lettered(values)}", response, "", letter)


def tell(rng: Random) -> Problem:
    """Some facts about one being, stated plainly."""
    being, relations = rng.choice(BEINGS), rng.sample(list(RELATIONS), 4)
    told = " . ".join(state(being, relation) for relation in relations)
    return Problem("tell", f"about {being} : {' '.join(relations)}", f"{told} .", "", "")
