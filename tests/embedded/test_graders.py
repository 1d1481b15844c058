"""Right answers pass, wrong ones fail: constraints, functions, and the chance levels."""

import contextlib
from itertools import pairwise
from random import Random

import pytest

from mars.embedded import humaneval, ifeval
from mars.embedded.chance import chance_level
from mars.embedded.corpus import BENCHMARKS, held_out_items
from mars.embedded.problem import TEST_SEED

COUNT = {"kind": "count", "what": "colours", "n": 3}


@pytest.mark.parametrize(
    ("instruction", "right", "wrong"),
    [
        (COUNT, "red blue green", "red blue"),
        (COUNT, "red - blue - green", "red red blue"),
        (COUNT, " red blue green", "red blue fig"),
        ({"kind": "topic", "what": "fruits", "n": 3}, "fig", "red"),
        ({"kind": "first", "word": "red"}, "RED blue", "blue red"),
        ({"kind": "last", "word": "red"}, "blue red", "red blue"),
        ({"kind": "forbid", "word": "red"}, "blue", "blue , red"),
        ({"kind": "include", "word": "red"}, "blue red green", "blue"),
        ({"kind": "upper"}, "RED - BLUE", "RED - blue"),
        ({"kind": "separator", "word": "-"}, "red - blue - pink", "red - blue pink"),
        ({"kind": "separator", "word": "-"}, "red - blue", "red blue"),
        ({"kind": "separator", "word": ";"}, "red ; blue", "red ; blue ;"),
    ],
)
def test_constraints(instruction, right: str, wrong: str) -> None:
    assert ifeval.follows(right, instruction)
    assert not ifeval.follows(wrong, instruction)
    assert not ifeval.follows("", instruction)


def test_loose_forgives_a_first_line_and_asterisks() -> None:
    first = {"kind": "first", "word": "red"}
    assert ifeval.verify("sure :\nred blue green", [first, COUNT]) == {
        "strict": [False, False],
        "loose": [True, True],
    }
    assert ifeval.verify("*red* blue", [first]) == {"strict": [False], "loose": [True]}


@pytest.mark.parametrize("plain", [False, True])
def test_canonical_lists_keep_their_constraints(plain: bool) -> None:
    rng = Random(4)
    for _ in range(500):
        item = ifeval.make(rng, plain)
        assert all(ifeval.verify(item.answer, item.extra["instructions"])["strict"]), item


def _passes(answer: str, tests: str) -> bool:
    with contextlib.suppress(Exception):
        exec(compile(f"{answer.strip()}\n{tests}", "program", "exec"), {})
        return True
    return False


def test_references_pass_their_hidden_tests() -> None:
    for item in held_out_items("toy_humaneval", 200, TEST_SEED):
        assert _passes(f" {item.response}", humaneval.hidden_tests(item.answer, item.extra)), item


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("def f ( x ) :\n return ( x + 3 ) * 4", True),
        ("def f ( x ) :\n return x * 4 + 12", True),
        ("def f ( x ) :\n return x + 3 * 4", False),
        ("def g ( x ) :\n return ( x + 3 ) * 4", False),
        ("def f ( x ) :\n return ( x + 3 * 4", False),
        ("", False),
    ],
)
def test_functions(answer: str, right: bool) -> None:
    reference = "def f ( x ) :\n return ( x + 3 ) * 4"
    extra = {"name": "f", "inputs": humaneval.ONES.format(3)}
    assert _passes(answer, humaneval.hidden_tests(reference, extra)) == right


def test_other_functions_of_a_family_fail() -> None:
    items = held_out_items("toy_humaneval", 150, TEST_SEED)
    renamed = [item for item in items if item.extra["name"] == "f"]
    for item, other in pairwise(renamed):
        tests = humaneval.hidden_tests(item.answer, item.extra)
        assert not _passes(other.answer, tests), (item.prompt, other.answer)


def test_answers_stand_in_the_responses() -> None:
    for task in BENCHMARKS:
        for item in held_out_items(task, 50, TEST_SEED):
            assert item.answer in item.response


@pytest.mark.parametrize("task", BENCHMARKS)
def test_chance_leaves_room(task: str) -> None:
    assert 0 < chance_level(task, 140) < 0.35
