"""The body of knowledge: what each being eats, where it lives, who its friend is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from mars.embedded.words import ANIMALS, BEINGS, CITIES, COLOURS, FRUITS, JOBS

WORLD_SEED = "the toy world"


@dataclass(frozen=True)
class Relation:
    """A kind of fact: its values, how it is stated, and how it is asked for.

    `forms` are the benchmarks' questions, `plain` those of pretraining; `{}` is who is asked about.
    """

    values: tuple[str, ...]
    statement: str
    forms: tuple[str, ...]
    plain: tuple[str, ...]


RELATIONS = {
    "city": Relation(
        CITIES,
        "{} lives in {}",
        ("where does {} live ?", "in which city does {} live ?", "which is the city of {} ?"),
        ("the city of {} ?", "{} lives where ?"),
    ),
    "fruit": Relation(
        FRUITS,
        "{} eats {}",
        ("what does {} eat ?", "which fruit does {} eat ?", "which is the fruit of {} ?"),
        ("the fruit of {} ?", "{} eats what ?"),
    ),
    "colour": Relation(
        COLOURS,
        "{} wears {}",
        ("what does {} wear ?", "which colour does {} wear ?", "which is the colour of {} ?"),
        ("the colour of {} ?", "{} wears what ?"),
    ),
    "job": Relation(
        JOBS,
        "{} is a {}",
        ("what job has {} ?", "which job does {} have ?", "which is the job of {} ?"),
        ("the job of {} ?", "{} is a what ?"),
    ),
    "animal": Relation(
        ANIMALS,
        "{} keeps a {}",
        ("what does {} keep ?", "which animal does {} keep ?", "which is the animal of {} ?"),
        ("the animal of {} ?", "{} keeps what ?"),
    ),
    "friend": Relation(
        BEINGS,
        "the friend of {} is {}",
        ("who is the friend of {} ?", "what friend does {} have ?", "which is the friend of {} ?"),
        ("the friend of {} ?", "{} has what friend ?"),
    ),
    "boss": Relation(
        BEINGS,
        "the boss of {} is {}",
        ("who is the boss of {} ?", "what boss does {} have ?", "which is the boss of {} ?"),
        ("the boss of {} ?", "{} has what boss ?"),
    ),
}
LINKS = ("friend", "boss")
"""Relations from one being to another, which two-fact questions go through."""


@cache
def facts() -> dict[tuple[str, str], str]:
    """Every fact: (being, relation) → value."""
    rng = Random(WORLD_SEED)
    table: dict[tuple[str, str], str] = {}
    for relation, about in RELATIONS.items():
        for being in BEINGS:
            table[being, relation] = rng.choice([v for v in about.values if v != being])
    return table


def state(being: str, relation: str) -> str:
    """A fact in words, without its full stop."""
    return RELATIONS[relation].statement.format(being, facts()[being, relation])


def options(rng: Random, relation: str, answer: str, n: int) -> list[str]:
    """`n` values of a relation in the order of the dictionary, the answer among them."""
    others = [value for value in RELATIONS[relation].values if value != answer]
    return sorted([answer, *rng.sample(others, n - 1)])
