"""`toy_bbh`: seven symbolic sub-tasks, answered step by step."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mars.embedded.problem import Problem, numbers_key
from mars.embedded.words import ANIMALS, CITIES, COLOURS, FRUITS, NAMES

OPEN = "let us think step by step ."
CLOSING = {"(": ")", "[": "]", "{": "}"}
PEOPLE = 4


def _finish(
    name: str, asks: tuple[str, str], steps: str, answer: str, key: str, plain: bool
) -> Problem:
    """The problem, asked and answered in the benchmark's way or in the plain one."""
    response = (
        f"{steps} . it is {answer} ."
        if plain
        else (f"{OPEN} {steps} . so the answer is {answer} .")
    )
    return Problem(f"toy_bbh_{name}", asks[plain], response, f"{name}|{key}", answer)


def _word(value: bool) -> str:
    return "true" if value else "false"


def _literal(rng: Random) -> tuple[str, bool]:
    """`true`, or `not true`, or …, and its value."""
    value, negate = rng.random() < 0.5, rng.random() < 0.2
    return f"{'not ' if negate else ''}{_word(value)}", value != negate


def _bracket(rng: Random, steps: list[str]) -> tuple[str, bool, str]:
    """A bracket of two literals, perhaps negated: its text, value and key; adds its steps."""
    (left, a), (right, b) = _literal(rng), _literal(rng)
    op, negate = rng.choice(("and", "or")), rng.random() < 0.3
    value = (a and b) if op == "and" else (a or b)
    steps.append(f"{_word(a)} {op} {_word(b)} is {_word(value)}")
    if negate:
        steps.append(f"not {_word(value)} is {_word(not value)}")
    prefix = "not " if negate else ""
    key = f"{prefix}{op}({','.join(sorted((left, right)))})"
    return f"{prefix}( {left} {op} {right} )", value != negate, key


def boolean(rng: Random, plain: bool = False) -> Problem:
    """The value of an expression such as `not ( true and false ) or ( not true or false )`."""
    steps: list[str] = []
    (left, a, left_key), (right, b, right_key) = _bracket(rng, steps), _bracket(rng, steps)
    op = rng.choice(("and", "or"))
    value = (a and b) if op == "and" else (a or b)
    steps.append(f"{_word(a)} {op} {_word(b)} is {_word(value)}")
    text = f"{left} {op} {right}"
    key = f"{op}[{';'.join(sorted((left_key, right_key)))}]"
    asks = (f"what is {text} ?", f"name {text} .")
    return _finish("boolean", asks, " . ".join(steps), _word(value), key, plain)


def shuffled(rng: Random, plain: bool = False) -> Problem:
    """Who holds which colour after some swaps."""
    people = rng.sample(NAMES, PEOPLE)
    holds = dict(zip(people, rng.sample(COLOURS, PEOPLE), strict=True))
    told = [f"{name} has {colour}" for name, colour in holds.items()]
    steps, key = [], []
    for _ in range(rng.choice((2, 3))):
        a, b = rng.sample(people, 2)
        holds[a], holds[b] = holds[b], holds[a]
        told.append(f"{a} and {b} swap")
        steps.append(f"{a} has {holds[a]} and {b} has {holds[b]}")
        key.append("".join(sorted(f"{people.index(a)}{people.index(b)}")))
    asked = rng.choice(people)
    key.append(str(people.index(asked)))
    story = " . ".join(told)
    asks = (f"{story} . what does {asked} have ?", f"{story} . now {asked} has what ?")
    return _finish("shuffled", asks, " . ".join(steps), holds[asked], "-".join(key), plain)


def counting(rng: Random, plain: bool = False) -> Problem:
    """How many of the things listed are of one kind."""
    kinds = {"fruits": FRUITS, "animals": ANIMALS, "colours": COLOURS}
    asked, other = rng.sample(sorted(kinds), 2)
    wanted = [(rng.randint(1, 9), word) for word in rng.sample(kinds[asked], rng.choice((2, 3)))]
    decoys = [(rng.randint(1, 9), word) for word in rng.sample(kinds[other], rng.choice((1, 2)))]
    things = [*wanted, *decoys]
    rng.shuffle(things)
    wanted = [thing for thing in things if thing in wanted]
    listed = " , ".join(f"{n} {word}" for n, word in things)
    total, sums = wanted[0][0], []
    for n, _ in wanted[1:]:
        sums.append(f"{total} + {n} = {total + n}")
        total += n
    steps = f"{' , '.join(f'{n} {word}' for n, word in wanted)} . {' . '.join(sums)}"
    key = numbers_key(f"{len(decoys)}", [n for n, _ in wanted])
    asks = (f"i have {listed} . how many {asked} ?", f"how many {asked} in {listed} ?")
    return _finish("counting", asks, steps, str(total), key, plain)


def _sort_steps(ordered: list[str]) -> str:
    return f"first {' , then '.join(ordered)}"


def numbers(rng: Random, plain: bool = False) -> Problem:
    """Numbers in rising order."""
    given = rng.sample(range(100), rng.choice((3, 4)))
    ordered = [str(n) for n in sorted(given)]
    text = " ".join(map(str, given))
    asks = (f"sort the numbers {text} .", f"order {text} .")
    key = numbers_key("", given)
    return _finish("numbers", asks, _sort_steps(ordered), " ".join(ordered), key, plain)


def words(rng: Random, plain: bool = False) -> Problem:
    """Words in the order of the dictionary."""
    given = rng.sample((*FRUITS, *ANIMALS, *CITIES), rng.choice((3, 4)))
    ordered = sorted(given)
    text = " ".join(given)
    asks = (f"sort the words {text} .", f"order {text} .")
    return _finish("words", asks, _sort_steps(ordered), " ".join(ordered), "-".join(ordered), plain)


def brackets(rng: Random, plain: bool = False) -> Problem:
    """Close what is still open."""
    while True:
        text: list[str] = []
        stack: list[str] = []
        for _ in range(rng.randint(4, 9)):
            if stack and rng.random() < 0.4:
                text.append(CLOSING[stack.pop()])
            else:
                stack.append(rng.choice(sorted(CLOSING)))
                text.append(stack[-1])
        if 2 <= len(stack) <= 4:
            break
    answer = " ".join(CLOSING[bracket] for bracket in reversed(stack))
    asks = (f"close the brackets {' '.join(text)}", f"end {' '.join(text)}")
    steps = f"still open are {' '.join(stack)}"
    return _finish("brackets", asks, steps, answer, "".join(text), plain)


def ranking(rng: Random, plain: bool = False) -> Problem:
    """Who is first, or last, when some beat others."""
    people = rng.sample(NAMES, PEOPLE)
    pairs = list(zip(range(PEOPLE - 1), range(1, PEOPLE), strict=True))
    rng.shuffle(pairs)
    told, key = [], []
    for better, worse in pairs:
        flip = rng.random() < 0.5
        verb = "trails" if flip else "beats"
        a, b = (worse, better) if flip else (better, worse)
        told.append(f"{people[a]} {verb} {people[b]}")
        key.append(f"{a}{verb[0]}{b}")
    place = rng.choice(("first", "second", "third", "last"))
    answer = people[("first", "second", "third", "last").index(place)]
    story = " . ".join(told)
    asks = (f"{story} . who is {place} ?", f"{story} . name the {place} .")
    steps = " beats ".join(people)
    return _finish("ranking", asks, steps, answer, f"{'-'.join(key)}-{place}", plain)


SUBTASKS: dict[str, Callable[..., Problem]] = {
    "boolean": boolean,
    "shuffled": shuffled,
    "counting": counting,
    "numbers": numbers,
    "words": words,
    "brackets": brackets,
    "ranking": ranking,
}


def make(rng: Random, plain: bool = False) -> Problem:
    """One problem of a random sub-task."""
    return rng.choice(list(SUBTASKS.values()))(rng, plain)
