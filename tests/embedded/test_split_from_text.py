"""No test item meets training, by what prompts *say*: nothing here looks at the generator's keys.

A prompt is read back into a normalised problem by patterns of its own, in the benchmarks' wording
and in pretraining's. What is not understood fails the test, so that no wording goes unread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from mars.embedded.bbh import SUBTASKS
from mars.embedded.corpus import conversations, held_out_items
from mars.embedded.problem import TEST_ITEMS, TEST_SEED

CONVERSATIONS = 15_000
SUBTASK_ITEMS = 70

Reading = tuple[str, object] | None
"""(kind of problem, its normalised form), or None where a prompt is of another kind."""


def numbers_in(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, re.findall(r"\d+", text))))


# ------------------------------------------------------------------------------- word problems

VERBS = {"buys": "+", "finds": "+", "gets": "+", "loses": "-", "sells": "-", "gives": "-"}
RELATIONS = {"more than": "+", "fewer than": "-", "times": "*"}


def gsm8k(prompt: str) -> Reading:
    """Operations in their order and the numbers sorted; names, items and verbs are gone."""
    if bare := re.fullmatch(r"what is (\d+(?: [-+*] \d+)+) \?", prompt):
        return "gsm8k", ("".join(re.findall(r"[-+*]", bare[1])), numbers_in(prompt))
    if not re.search(r"^\w+ has \d+ .* how many \w+ (now|does \w+ have|in all|do they)", prompt):
        return None
    if both := re.search(r"has \d+ (more than|fewer than|times)", prompt):
        return "gsm8k", ("both" + RELATIONS[both[1]], numbers_in(prompt))
    told = ["*"] * (" bags with " in prompt)
    told += [VERBS[word] for word in prompt.split() if word in VERBS]
    return "gsm8k", ("".join(told), numbers_in(prompt))


# ------------------------------------------------------------------------------------ symbolic

COLOUR_STORY = re.compile(r"^((?:\w+ has \w+ \. ){4})((?:\w+ and \w+ swap \. )+)(.*)$")
RANKED = re.compile(r"^((?:\w+ (?:beats|trails) \w+ \. ){3})(?:who is|name the) (\w+) [?.]$")
LITERAL = r"(?:not )?(?:true|false)"
BRACKET = rf"(?:not )?\( {LITERAL} (?:and|or) {LITERAL} \)"
EXPRESSION = re.compile(rf"^(?:what is|name) ({BRACKET}) (and|or) ({BRACKET}) [?.]$")


def brackets(prompt: str) -> Reading:
    found = re.fullmatch(r"(?:close the brackets|end) ([][(){} ]+)", prompt)
    return ("brackets", found[1].replace(" ", "")) if found else None


def sorting(prompt: str) -> Reading:
    found = re.fullmatch(r"(?:sort the (?:numbers|words)|order) ([\w ]+) \.", prompt)
    return ("sorting", tuple(sorted(found[1].split()))) if found else None


def boolean(prompt: str) -> Reading:
    """The expression, with the two sides of each `and` and `or` in no order."""
    found = EXPRESSION.match(prompt)
    return (
        ("boolean", (found[2], tuple(sorted(map(_bracket, found.group(1, 3)))))) if found else None
    )


def _bracket(text: str) -> tuple[bool, str, tuple[str, ...]]:
    inner = text[text.index("(") + 2 : -2]
    left, op, right = re.fullmatch(rf"({LITERAL}) (and|or) ({LITERAL})", inner).groups()  # type: ignore[union-attr]
    return text.startswith("not"), op, tuple(sorted((left, right)))


def swaps(prompt: str) -> Reading:
    """Who swaps with whom and who is asked for, people named by their place in the story."""
    found = COLOUR_STORY.match(prompt)
    if not found:
        return None
    people = re.findall(r"(\w+) has", found[1])
    pairs = re.findall(r"(\w+) and (\w+) swap", found[2])
    asked = next(word for word in found[3].split() if word in people)
    steps = tuple(tuple(sorted(map(people.index, pair))) for pair in pairs)
    return "swaps", (steps, people.index(asked))


def ranking(prompt: str) -> Reading:
    """The comparisons as they are told and the place asked for, people by their rank."""
    found = RANKED.match(prompt)
    if not found:
        return None
    told = re.findall(r"(\w+) (beats|trails) (\w+)", found[1])
    below = dict(t[::2] if t[1] == "beats" else t[::-2] for t in told)
    ranks = [next(a for a in below if a not in below.values())]
    while ranks[-1] in below:
        ranks.append(below[ranks[-1]])
    steps = tuple((ranks.index(a), verb, ranks.index(b)) for a, verb, b in told)
    return "ranking", (steps, found[2])


# ----------------------------------------------------------------------------------- knowledge

# Every way to ask for a relation, `@` being who is asked about.
ASKED = {
    "city": r"where does @ live|in which city does @ live|which is the city of @",
    "fruit": r"what does @ eat|which fruit does @ eat|which is the fruit of @",
    "colour": r"what does @ wear|which colour does @ wear|which is the colour of @",
    "job": r"what job has @|which job does @ have|which is the job of @",
    "animal": r"what does @ keep|which animal does @ keep|which is the animal of @",
    "friend": r"who is the friend of @|what friend does @ have|which is the friend of @",
    "boss": r"who is the boss of @|what boss does @ have|which is the boss of @",
}
PLAINLY = {
    "city": r"the city of @|@ lives where",
    "fruit": r"the fruit of @|@ eats what",
    "colour": r"the colour of @|@ wears what",
    "job": r"the job of @|@ is a what",
    "animal": r"the animal of @|@ keeps what",
    "friend": r"the friend of @|@ has what friend",
    "boss": r"the boss of @|@ has what boss",
}
ONE, TWO = r"(?P<being>(?!the\b)\w+)", r"the (?P<link>friend|boss) of (?P<being>\w+)"


@cache
def questions(forms: tuple[tuple[str, str], ...], who: str) -> list[tuple[str, str, re.Pattern]]:
    """(relation, form, pattern) of every form."""
    return [
        (relation, form, re.compile(rf"^{form.replace('@', who)} \?(?: A \w+ B .*)?$"))
        for relation, text in forms
        for form in text.split("|")
    ]


def pair(prompt: str) -> Reading:
    """(being, link, relation), however it is asked for."""
    for forms in (ASKED, PLAINLY):
        for relation, _, pattern in questions(tuple(forms.items()), TWO):
            if found := pattern.match(prompt):
                return "pair", (found["being"], found["link"], relation)
    return None


def fact(prompt: str) -> Reading:
    """(being, form) of one of the benchmark's forms; pretraining's forms are others."""
    for relation, form, pattern in questions(tuple(ASKED.items()), ONE):
        if found := pattern.match(prompt):
            return "fact", (found["being"], relation, form)
    return None


# ----------------------------------------------------------------------------------- functions


def function(prompt: str) -> Reading:
    """The description with its numbers sorted out of it and its argument's name gone."""
    found = re.fullmatch(r"(?:write a function \w of (\w) that|code (\w) :) (.*)", prompt)
    if not found:
        return None
    argument = found[1] or found[2]
    words = ["@" if word == argument else word for word in found[3].split()]
    return "function", (re.sub(r"\d+", "#", " ".join(words)), numbers_in(found[3]))


# ------------------------------------------------------------------------------------ the tests

READERS: dict[str, Callable[[str], Reading]] = {
    "toy_gsm8k": gsm8k,
    "toy_mmlu_pro": fact,
    "toy_gpqa": pair,
    "toy_humaneval": function,
    "toy_bbh_boolean": boolean,
    "toy_bbh_shuffled": swaps,
    "toy_bbh_numbers": sorting,
    "toy_bbh_words": sorting,
    "toy_bbh_brackets": brackets,
    "toy_bbh_ranking": ranking,
}


ALSO = {
    "toy_gsm8k": ("drill_sum", "drill_chain"),
    "toy_gpqa": ("plain_pair", "plain_pair_choice"),
}
"""Pretraining's exercises that ask what a benchmark asks."""


@cache
def trained(kind: str) -> list[tuple[str, str]]:
    """(task, prompt) of the conversations that a run is trained on."""
    return [(c["task"], c["messages"][0]["content"]) for c in conversations(kind, CONVERSATIONS, 0)]  # type: ignore[arg-type]


def test_readers_know_every_subtask_but_counting() -> None:
    assert {f"toy_bbh_{name}" for name in SUBTASKS} - READERS.keys() == {"toy_bbh_counting"}


def test_readings_forget_what_they_should() -> None:
    told = (
        "tom has 5 coins . tom loses 2 . tom gets 7 from mia . how many coins does tom have now ?"
    )
    again = "eva has 7 books . eva sells 5 . eva finds 2 more . how many books now ?"
    assert gsm8k(told) == gsm8k(again) == gsm8k("what is 2 - 7 + 5 ?")
    turned = "eva has 7 books . eva finds 2 more . eva sells 5 . how many books now ?"
    assert gsm8k(turned) != gsm8k(again)
    assert pair("which is the city of the boss of nim ?") == pair("the boss of nim lives where ?")
    assert function("code x : adds 3 , then adds 4 .") == function(
        "write a function f of n that adds 4 , then adds 3 ."
    )


@pytest.mark.parametrize("task", READERS)
@pytest.mark.parametrize("kind", ["sft", "pretrain"])
def test_no_test_problem_is_trained_on(task: str, kind: str) -> None:
    read = READERS[task]
    items = held_out_items(task, SUBTASK_ITEMS if "bbh" in task else TEST_ITEMS, TEST_SEED)
    tested = {read(item.prompt): item.prompt for item in items}
    assert None not in tested
    prompts = trained(kind)
    own = [prompt for name, prompt in prompts if name in (task, *ALSO.get(task, ()))]
    assert len(own) > 40
    assert all(read(prompt) for prompt in own)  # no wording of training goes unread
    shown = {read(prompt): prompt for _, prompt in prompts}
    met = {tested[key]: shown[key] for key in tested.keys() & shown.keys()}
    assert not met
