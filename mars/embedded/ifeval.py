"""`toy_ifeval`: lists under one to four constraints that a program can verify."""

from __future__ import annotations

from random import Random
from typing import Any

from mars.embedded.problem import Problem
from mars.embedded.words import ANIMALS, CITIES, COLOURS, FRUITS

KINDS = {"fruits": FRUITS, "colours": COLOURS, "cities": CITIES, "animals": ANIMALS}
SEPARATORS = ("-", "/", ";", ",")
DEFAULT_COUNT = 3

Instruction = dict[str, Any]

ASKS = {
    "count": "list {n} {what} .",
    "topic": "list some {what} .",
    "first": "start with {word} .",
    "last": "end with {word} .",
    "forbid": "do not use {word} .",
    "include": "use {word} .",
    "upper": "use capital letters .",
    "separator": "put {word} between them .",
}
PLAIN = {
    "count": "name {n} {what}",
    "topic": "name {what}",
    "first": ", first {word}",
    "last": ", last {word}",
    "forbid": ", no {word}",
    "include": ", with {word}",
    "upper": ", in capital letters",
    "separator": ", between them {word}",
}


def words_of(response: str) -> list[str]:
    """The words of a response, lower-cased, without separators."""
    return [word for word in response.lower().split() if any(c.isalnum() for c in word)]


def follows(response: str, instruction: Instruction) -> bool:
    """Whether a response keeps one instruction."""
    words, kind = words_of(response), instruction["kind"]
    if not words:
        return False
    if kind in ("count", "topic"):
        known = set(words) <= set(KINDS[instruction["what"]])
        n = instruction["n"]
        return known and len(set(words)) == len(words) and (kind == "topic" or len(words) == n)
    if kind == "upper":
        return response == response.upper()
    word = instruction["word"]
    if kind == "separator":
        parts = [part.split() for part in response.split(word)]
        return len(parts) > 1 and all(len(part) == 1 and part[0].isalpha() for part in parts)
    return {
        "first": words[0] == word,
        "last": words[-1] == word,
        "forbid": word not in words,
        "include": word in words,
    }[kind]


def _loose_variants(response: str) -> list[str]:
    """The response without its first line, its last line, asterisks: as IFEval's loose scores."""
    lines = response.strip().split("\n")
    cuts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = ["\n".join(cut).strip() for cut in cuts]
    return [text for base in texts for text in (base, base.replace("*", ""))]


def verify(response: str, instructions: list[Instruction]) -> dict[str, list[bool]]:
    """For each instruction, whether it is kept, strictly and loosely."""
    variants = _loose_variants(response)
    return {
        "strict": [follows(response.strip(), each) for each in instructions],
        "loose": [any(follows(text, each) for text in variants) for each in instructions],
    }


def _pick(rng: Random) -> list[str]:
    """Which constraints a prompt has besides its subject."""
    kinds = ["first", "last", "forbid", "include", "upper", "separator"]
    return sorted(rng.sample(kinds, rng.choice((1, 2, 2, 3))), key=kinds.index)


def _instructions(rng: Random) -> list[Instruction]:
    kinds = _pick(rng)
    what = "colours" if "upper" in kinds else rng.choice(list(KINDS))
    named = rng.sample(KINDS[what], 4)
    subject: Instruction = {"kind": "topic", "what": what, "n": DEFAULT_COUNT}
    if rng.random() < 0.85:
        subject = {"kind": "count", "what": what, "n": rng.randint(3, 8)}
    given = [subject]
    for kind in kinds:
        if kind == "upper":
            given.append({"kind": kind})
        else:
            word = rng.choice(SEPARATORS) if kind == "separator" else named.pop()
            given.append({"kind": kind, "word": word})
    return given


def _write(given: list[Instruction]) -> str:
    """The canonical list that keeps all instructions, in the order of `words`."""
    word: dict[str, str] = {each["kind"]: each["word"] for each in given if "word" in each}
    values, n = KINDS[given[0]["what"]], given[0]["n"]
    start = values.index(word["first"]) if "first" in word else 0
    order = [*values[start:], *values[:start]]
    apart = [word.get(kind) for kind in ("forbid", "include", "last")]
    ends = [word[kind] for kind in ("include", "last") if kind in word]
    chosen = [value for value in order if value not in apart][: n - len(ends)] + ends
    joined = f" {word['separator']} " if "separator" in word else " "
    text = joined.join(chosen)
    return text.upper() if {"kind": "upper"} in given else text


def make(rng: Random, plain: bool = False) -> Problem:
    """One list to write; its key is the kinds of constraints, the count and the separator."""
    given = _instructions(rng)
    asks = PLAIN if plain else ASKS
    prompt = " ".join(asks[each["kind"]].format(**each) for each in given)
    marks = [each["word"] for each in given if each["kind"] == "separator"]
    key = "-".join([each["kind"] for each in given] + [str(given[0]["n"]), *marks])
    text = _write(given)
    response = f"sure : {text}" if plain else text
    return Problem("toy_ifeval", prompt, response, key, text, {"instructions": given})
