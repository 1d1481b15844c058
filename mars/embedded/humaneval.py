"""`toy_humaneval`: a small Python function from its description, graded by running tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from mars.embedded.problem import Problem, numbers_key

COMPARE = {"above": ">", "below": "<", "at least": ">=", "at most": "<="}
ARITHMETIC = {"plus": "+", "minus": "-", "times": "*"}
ARGUMENTS = ("x", "y", "n")
LISTS = "[[], [0], [5, 2, 9], [-3, 4, 12, 30, 7], [{0}, {0} + 1, {0} - 1, 2], list(range(40))]"
ONES = "range(-8, 60)"

Drawn = tuple[str, str, str, list[int]]
"""Description, body, key's skeleton, numbers."""


def _number(rng: Random) -> int:
    return rng.randint(2, 30)


def _chain(rng: Random, x: str) -> Drawn:
    """Operations one after another; brackets where a product follows a sum."""
    code, told = x, list[str]()
    skeleton, numbers = list[str](), list[int]()
    for _ in range(rng.choice((2, 3))):
        op = rng.choice(("add", "take", "multiply"))
        n = _number(rng)
        if op == "multiply" and skeleton and skeleton[-1] != "multiply":
            code = f"( {code} )"
        told.append({"add": f"adds {n}", "take": f"takes away {n}"}.get(op, f"multiplies by {n}"))
        code += {"add": f" + {n}", "take": f" - {n}"}.get(op, f" * {n}")
        skeleton.append(op)
        numbers.append(n)
    return f"{' , then '.join(told)} .", f"return {code}", "-".join(skeleton), numbers


def _term(rng: Random, x: str) -> tuple[str, str, str, int]:
    """`x plus 3` in words and in code, its operation and number."""
    word, n = rng.choice(list(ARITHMETIC)), _number(rng)
    return f"{x} {word} {n}", f"{x} {ARITHMETIC[word]} {n}", word, n


def _condition(rng: Random, x: str) -> tuple[str, str, str, list[int]]:
    """`above 3`, `even`, … in words and in code, its kind and numbers."""
    if rng.random() < 0.3:
        parity = rng.choice(("even", "odd"))
        return parity, f"{x} % 2 == {int(parity == 'odd')}", parity, []
    word, n = rng.choice(list(COMPARE)), _number(rng)
    return f"{word} {n}", f"{x} {COMPARE[word]} {n}", word, [n]


def _choice(rng: Random, x: str) -> Drawn:
    """One of two results, by a condition."""
    told, code, kind, numbers = _condition(rng, x)
    then_told, then_code, then_op, a = _term(rng, x)
    else_told, else_code, else_op, b = _term(rng, x)
    return (
        f"gives {then_told} if {x} is {told} , else {else_told} .",
        f"return {then_code} if {code} else {else_code}",
        f"{kind}?{then_op}:{else_op}",
        [*numbers, a, b],
    )


def _each(rng: Random, x: str) -> Drawn:
    """A list comprehension: keep some, change each."""
    told, code, kind, numbers = _condition(rng, "i")
    _, changed, op, n = _term(rng, "i")
    return (
        f"keeps what is {told} in the list {x} and gives each {op} {n} .",
        f"return [ {changed} for i in {x} if {code} ]",
        f"each-{kind}-{op}",
        [*numbers, n],
    )


def _total(rng: Random, x: str) -> Drawn:
    """The sum or the number of what passes a condition."""
    told, code, kind, numbers = _condition(rng, "i")
    what, call = rng.choice((("the sum", "sum"), ("the number", "len")))
    word, n = rng.choice(("plus", "minus", "times")), _number(rng)
    return (
        f"gives {what} of what is {told} in the list {x} , {word} {n} .",
        f"return {call} ( [ i for i in {x} if {code} ] ) {ARITHMETIC[word]} {n}",
        f"{call}-{kind}-{word}",
        [*numbers, n],
    )


def _loop(rng: Random, x: str) -> Drawn:
    """A running total, written as a loop."""
    _, changed, op, n = _term(rng, "i")
    start = rng.randint(0, 30)
    return (
        f"loops over the list {x} from {start} and adds each {op} {n} .",
        f"s = {start}\n for i in {x} : \n  s = s + {changed}\n return s",
        f"loop-{op}",
        [start, n],
    )


def _nested(rng: Random, x: str) -> Drawn:
    """One of three results, by two conditions in turn."""
    (told_a, code_a, kind_a, a), (told_b, code_b, kind_b, b) = (
        _condition(rng, x),
        _condition(rng, x),
    )
    terms = [_term(rng, x) for _ in range(3)]
    told, code, ops, numbers = zip(*terms, strict=True)
    return (
        f"gives {told[0]} if {x} is {told_a} , "
        f"else {told[1]} if {x} is {told_b} , else {told[2]} .",
        f"return {code[0]} if {code_a} else {code[1]} if {code_b} else {code[2]}",
        f"{kind_a}?{kind_b}?{':'.join(ops)}",
        [*a, *b, *numbers],
    )


def _sieve(rng: Random, x: str) -> Drawn:
    """A list comprehension with two conditions and two changes."""
    (told_a, code_a, kind_a, a), (told_b, code_b, kind_b, b) = (
        _condition(rng, "i"),
        _condition(rng, "i"),
    )
    op_a, op_b = rng.choice(list(ARITHMETIC)), rng.choice(list(ARITHMETIC))
    m, n = _number(rng), _number(rng)
    join = rng.choice(("and", "or"))
    return (
        f"keeps what is {told_a} {join} {told_b} in the list {x} "
        f"and gives each {op_a} {m} , then {op_b} {n} .",
        f"return [ ( i {ARITHMETIC[op_a]} {m} ) {ARITHMETIC[op_b]} {n} "
        f"for i in {x} if {code_a} {join} {code_b} ]",
        f"sieve-{kind_a}-{join}-{kind_b}-{op_a}-{op_b}",
        [*a, *b, m, n],
    )


BASIC: dict[Callable[[Random, str], Drawn], str] = {
    _chain: ONES,
    _choice: ONES,
    _each: LISTS,
    _total: LISTS,
    _loop: LISTS,
}
"""Families of functions, and the inputs they are tested on; pretraining knows only these."""

FAMILIES = BASIC | {_nested: ONES, _sieve: LISTS}
HARDER = 0.55
"""How many of the benchmark's items are of a family that pretraining does not know."""


def basic(rng: Random, plain: bool = False) -> Problem:
    """One function of a basic family."""
    return _problem(rng, rng.choice(list(BASIC)), plain)


def make(rng: Random) -> Problem:
    """One function to write; its key is what it does and its numbers."""
    harder = rng.random() < HARDER
    return _problem(rng, rng.choice([f for f in FAMILIES if (f not in BASIC) == harder]), False)


def _problem(rng: Random, family: Callable[[Random, str], Drawn], plain: bool) -> Problem:
    """A function of a family, described and written."""
    name, x = rng.choice("fgh"), rng.choice(ARGUMENTS)
    told, body, skeleton, numbers = family(rng, x)
    full = f"def {name} ( {x} ) :\n {body}"
    if plain:
        prompt, response = f"code {x} : {told}", body
    else:
        prompt, response = f"write a function {name} of {x} that {told}", full
    inputs = FAMILIES[family].format(numbers[0])
    key = numbers_key(skeleton, numbers)
    return Problem("toy_humaneval", prompt, response, key, full, {"name": name, "inputs": inputs})


def hidden_tests(reference: str, extra: dict[str, Any]) -> str:
    """Tests of an answer, which defines the function they call: it agrees with `reference`."""
    name = extra["name"]
    return "\n".join(
        (
            f"_answer = {name}",
            reference,
            f"for _x in {extra['inputs']}:",
            f"    assert _answer(_x) == {name}(_x), _x",
            "",
        )
    )
