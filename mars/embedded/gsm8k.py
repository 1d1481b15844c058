"""`toy_gsm8k`: word problems over small whole numbers, worked out in two or three steps."""

from __future__ import annotations

from random import Random

from mars.embedded.problem import Problem, numbers_key
from mars.embedded.words import NAMES

ITEMS = ("apples", "books", "coins", "cards")
LARGEST = 99
SYMBOL = {"add": "+", "sub": "-", "mul": "*"}
TEXTS = {
    "add": ("buys {} more .", "finds {} more .", "gets {} from {} ."),
    "sub": ("loses {} .", "sells {} .", "gives {} to {} ."),
}


def apply(op: str, left: int, right: int) -> int:
    """The result of one operation."""
    return {"add": left + right, "sub": left - right, "mul": left * right}[op]


def step(op: str, left: int, right: int) -> str:
    """One step written out: `7 + 5 = 12`."""
    return f"{left} {SYMBOL[op]} {right} = {apply(op, left, right)}"


def _operand(rng: Random, op: str, value: int) -> int | None:
    """A right operand that keeps the result within 1 … LARGEST, or None."""
    low, high = 2, {"add": LARGEST - value, "sub": value - 1, "mul": LARGEST // value}[op]
    high = min(high, 6 if op == "mul" else 40)
    return rng.randint(low, high) if high >= low else None


def _chain(rng: Random, ops: list[str]) -> list[int]:
    """A start and one operand for each operation."""
    while True:
        start = rng.randint(3, 9 if ops[0] == "mul" else 60)
        numbers, value = [start], start
        for op in ops:
            operand = _operand(rng, op, value)
            if operand is None:
                break
            numbers.append(operand)
            value = apply(op, value, operand)
        else:
            return numbers


def _steps(ops: list[str], numbers: list[int]) -> tuple[list[str], int]:
    """The written steps of a chain, and its result."""
    value, written = numbers[0], []
    for op, operand in zip(ops, numbers[1:], strict=True):
        written.append(step(op, value, operand))
        value = apply(op, value, operand)
    return written, value


def _finish(prompt: str, steps: list[str], last: int, item: str, key: str, plain: bool) -> Problem:
    """The problem, in the benchmark's answer format or in the plain one."""
    end = f"so it is {last} ." if plain else f"#### {last}"
    return Problem("toy_gsm8k", prompt, f" {item} . ".join([*steps, end]), key, str(last))


def _one_owner(rng: Random, plain: bool) -> Problem:
    """Someone owns things, and gains and loses some."""
    name, other = rng.sample(NAMES, 2)
    item, ops = rng.choice(ITEMS), [rng.choice(("add", "sub")) for _ in range(rng.choice((2, 3)))]
    bags = rng.random() < 0.4
    if bags:
        ops = ["mul", *ops[:-1]]
    numbers = _chain(rng, ops)
    steps, value = _steps(ops, numbers)
    rest = list(zip(ops, numbers[1:], strict=True))
    if bags:
        start = f"{name} has {numbers[0]} bags with {numbers[1]} {item} each ."
        rest = rest[1:]
    else:
        start = f"{name} has {numbers[0]} {item} ."
    told = [f"{name} {rng.choice(TEXTS[op]).format(number, other)}" for op, number in rest]
    ask = f"how many {item} does {name} have now ?"
    if plain:
        ask = f"how many {item} now ?"
    steps[0] = f"{name} has {steps[0]}"
    steps[1:] = [f"then {text}" for text in steps[1:]]
    key = numbers_key("-".join(ops), numbers)
    return _finish(" ".join([start, *told, ask]), steps, value, item, key, plain)


def _two_owners(rng: Random, plain: bool) -> Problem:
    """One has so many more, fewer, or times as many as another; how many in all?"""
    name, other = rng.sample(NAMES, 2)
    item, op = rng.choice(ITEMS), rng.choice(("add", "sub", "mul"))
    while True:
        first, second = _chain(rng, [op])
        theirs = apply(op, first, second)
        if first + theirs <= LARGEST:
            break
    relation = {"add": "more than", "sub": "fewer than", "mul": "times"}[op]
    than = f"what {name} has" if op == "mul" else name
    prompt = (
        f"{name} has {first} {item} . {other} has {second} {relation} {than} . "
        + f"how many {item} {'in all' if plain else 'do they have in all'} ?"
    )
    steps = [f"{other} has {step(op, first, second)}", f"in all {step('add', first, theirs)}"]
    key = numbers_key(f"both-{op}", [first, second])
    return _finish(prompt, steps, first + theirs, item, key, plain)


def make(rng: Random, plain: bool = False) -> Problem:
    """One word problem; `plain` has another question and no `####`."""
    return (_two_owners if rng.random() < 0.3 else _one_owner)(rng, plain)


def drill(rng: Random) -> Problem:
    """Bare arithmetic, for pretraining: one operation, or a chain of them."""
    if rng.random() < 0.6:
        op = rng.choice(("add", "add", "sub", "sub", "mul"))
        left, right = _chain(rng, [op])
        text = f"{left} {SYMBOL[op]} {right}"
        key = numbers_key(f"one-{op}", [left, right])
        result = apply(op, left, right)
        return Problem("drill_sum", f"what is {text} ?", f"{text} = {result}", key, str(result))
    ops = [rng.choice(("add", "sub")) for _ in range(rng.choice((2, 3)))]
    numbers = _chain(rng, ops)
    steps, value = _steps(ops, numbers)
    told = " ".join(f"{SYMBOL[op]} {x}" for op, x in zip(ops, numbers[1:], strict=True))
    key = numbers_key("-".join(ops), numbers)
    prompt = f"what is {numbers[0]} {told} ?"
    return Problem("drill_chain", prompt, " . then ".join(steps), key, str(value))
