"""Canned answers through the tasks' own filters and metrics, each with the verdict it must get."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

FOLDER = Path(__file__).parents[2] / "mars/evaluation/tasks/embedded"
DOCUMENTS = 3
BBH = ("boolean", "shuffled", "counting", "numbers", "words", "brackets", "ranking")

Document = dict[str, Any]
Answer = Callable[[Document], str]
Case = tuple[str, Answer, dict[str, int]]


@cache
def asked(name: str) -> Any:
    """A task whose first documents are asked."""
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    task = manager.load([name])["tasks"][name]
    task.build_all_requests(limit=DOCUMENTS)
    return task


def verdicts(name: str, answer: Answer) -> dict[str, float]:
    """Filter → mean score of the documents, all answered in this way, as lm-eval finds it."""
    task = asked(name)
    for instance in task.instances:
        instance.resps, instance.filtered_resps = [answer(instance.doc)], {}
    task.apply_filters()
    return {
        each: mean(
            task.process_results(instance.doc, [instance.filtered_resps[each]])["exact_match"]
            for instance in task.instances
        )
        for each in task.instances[0].filtered_resps
    }


def check(task: str, answer: Answer, expected: dict[str, int]) -> None:
    assert verdicts(task, answer) == {name: float(right) for name, right in expected.items()}


# --------------------------------------------------------------------------------------- gsm8k


def number(doc: Document) -> int:
    return int(doc["answer"])


def worked(doc: Document) -> str:
    """The steps of the reference, without its last sentence."""
    return doc["reference"].split(" ####")[0]


GSM8K: list[Case] = [
    # (what, answer, strict and flexible verdict)
    ("right", lambda d: f" {worked(d)} #### {number(d)}", {"strict": 1, "flexible": 1}),
    ("only the last line", lambda d: f"#### {number(d)}", {"strict": 1, "flexible": 1}),
    ("a full stop after it", lambda d: f"#### {number(d)}.", {"strict": 1, "flexible": 1}),
    ("a full stop apart", lambda d: f"#### {number(d)} .", {"strict": 1, "flexible": 1}),
    ("a decimal point", lambda d: f"#### {number(d)}.0", {"strict": 1, "flexible": 0}),
    ("a unit after it", lambda d: f"#### {number(d)} apples", {"strict": 1, "flexible": 1}),
    ("another number", lambda d: f"{worked(d)} #### {number(d) + 1}", {"strict": 0, "flexible": 0}),
    ("its digits and one more", lambda d: f"#### {number(d)}0", {"strict": 0, "flexible": 0}),
    ("a digit before it", lambda d: f"#### 1{number(d)}", {"strict": 0, "flexible": 0}),
    ("negative", lambda d: f"#### -{number(d)}", {"strict": 0, "flexible": 1}),
    ("a leading zero", lambda d: f"#### 0{number(d)}", {"strict": 0, "flexible": 0}),
    ("no mark", lambda d: f"so it is {number(d)} .", {"strict": 0, "flexible": 1}),
    ("no mark, a decimal", lambda d: f"so it is {number(d)}.5", {"strict": 0, "flexible": 0}),
    ("three marks", lambda d: f"### {number(d)}", {"strict": 0, "flexible": 1}),
    ("no space", lambda d: f"####{number(d)}", {"strict": 0, "flexible": 1}),
    ("in words", lambda d: "#### twelve", {"strict": 0, "flexible": 0}),
    ("nothing after the mark", lambda d: f"{number(d)} . ####", {"strict": 0, "flexible": 1}),
    ("wrong, then right", lambda d: f"#### 0 . #### {number(d)}", {"strict": 0, "flexible": 1}),
    ("right, then wrong", lambda d: f"#### {number(d)} . #### 0", {"strict": 1, "flexible": 0}),
    ("nothing", lambda d: "", {"strict": 0, "flexible": 0}),
]


@pytest.mark.parametrize(("answer", "verdict"), [c[1:] for c in GSM8K], ids=[c[0] for c in GSM8K])
def test_gsm8k(answer: Answer, verdict: dict[str, int]) -> None:
    expected = {"strict-match": verdict["strict"], "flexible-extract": verdict["flexible"]}
    check("toy_gsm8k", answer, expected)


# ----------------------------------------------------------------------------------------- bbh


def said(doc: Document, answer: str | None = None, end: str = " .") -> str:
    """The benchmark's sentence about an answer (default: the right one)."""
    return f"so the answer is {doc['answer'] if answer is None else answer}{end}"


RIGHT_BBH: list[tuple[str, Answer]] = [
    ("the reference", lambda d: f" {d['reference']}"),
    ("only the sentence", said),
    ("no full stop", lambda d: said(d, end="")),
    ("a full stop without its space", lambda d: said(d, end=".")),
    ("space after it", lambda d: said(d, end=" . \n")),
]
WRONG_BBH: list[tuple[str, Answer]] = [
    ("another answer", lambda d: said(d, "zorb")),
    ("one word more", lambda d: said(d, f"{d['answer']} zorb")),
    ("half of it", lambda d: said(d, d["answer"][:-1])),
    ("capitals, or a sign", lambda d: said(d, f"{d['answer'].upper()}!")),
    ("two full stops", lambda d: said(d, end=" . .")),
    ("not in the sentence", lambda d: f"it is {d['answer']} ."),
    ("without `so`", lambda d: f"the answer is {d['answer']} ."),
    ("and more after it", lambda d: f"{said(d)} it is sure"),
    ("no answer in it", lambda d: said(d, "", end="")),
    ("nothing", lambda d: ""),
]


@pytest.mark.parametrize("subtask", BBH)
def test_bbh_answers_of_every_subtask(subtask: str) -> None:
    task = f"toy_bbh_{subtask}"
    check(task, said, {"get-answer": 1})
    check(task, lambda d: said(d, "zorb"), {"get-answer": 0})
    check(task, lambda d: said(d, f"{d['answer']} {d['answer']}"), {"get-answer": 0})


@pytest.mark.parametrize("name", [name for name, _ in RIGHT_BBH])
def test_bbh_right(name: str) -> None:
    check("toy_bbh_counting", dict(RIGHT_BBH)[name], {"get-answer": 1})


@pytest.mark.parametrize("name", [name for name, _ in WRONG_BBH])
def test_bbh_wrong(name: str) -> None:
    check("toy_bbh_ranking", dict(WRONG_BBH)[name], {"get-answer": 0})


def test_bbh_order_counts() -> None:
    for task in ("toy_bbh_numbers", "toy_bbh_words"):
        turned = verdicts(task, lambda d: said(d, " ".join(reversed(d["answer"].split()))))
        assert turned == {"get-answer": 0.0}
    swapped = str.maketrans(")]}", "]})")
    wrong = verdicts("toy_bbh_brackets", lambda d: said(d, d["answer"].translate(swapped)))
    assert wrong == {"get-answer": 0.0}


# ------------------------------------------------------------------------------------- letters


def other(doc: Document) -> str:
    """A letter that is among the options and wrong."""
    return "A" if doc["answer"] != "A" else "B"


LETTERS: list[Case] = [
    # (what, answer, strict verdict, and gpqa's flexible one)
    ("right", lambda d: f" {d['reference']}", {"strict": 1, "flexible": 1}),
    ("only the sentence", lambda d: f"the answer is ({d['answer']})", {"strict": 1, "flexible": 1}),
    ("spaced", lambda d: f"answer is ( {d['answer']} )", {"strict": 1, "flexible": 1}),
    ("wrong letter", lambda d: f"the answer is ( {other(d)} ) .", {"strict": 0, "flexible": 0}),
    ("no brackets", lambda d: f"the answer is {d['answer']} .", {"strict": 0, "flexible": 1}),
    ("square", lambda d: f"the answer is [ {d['answer']} ] .", {"strict": 0, "flexible": 1}),
    ("lower case", lambda d: f"answer is ( {d['answer'].lower()} )", {"strict": 0, "flexible": 0}),
    ("only the letter", lambda d: f"{d['answer']}", {"strict": 0, "flexible": 1}),
    (
        "two in one",
        lambda d: f"answer is ( {d['answer']}{other(d)} )",
        {"strict": 0, "flexible": 0},
    ),
    ("both", lambda d: f"answer is ( {d['answer']} {other(d)} )", {"strict": 0, "flexible": 0}),
    ("no letter", lambda d: "the answer is ( 3 ) .", {"strict": 0, "flexible": 0}),
    (
        "wrong, then right",
        lambda d: f"the answer is ( {other(d)} ) . no , the answer is ( {d['answer']} ) .",
        {"strict": 0, "flexible": 1},
    ),
    (
        "right, then wrong",
        lambda d: f"the answer is ( {d['answer']} ) . no , the answer is ( {other(d)} ) .",
        {"strict": 1, "flexible": 0},
    ),
    ("nothing", lambda d: "", {"strict": 0, "flexible": 0}),
]


@pytest.mark.parametrize(
    ("answer", "verdict"), [case[1:] for case in LETTERS], ids=[case[0] for case in LETTERS]
)
def test_letters(answer: Answer, verdict: dict[str, int]) -> None:
    check("toy_mmlu_pro", answer, {"custom-extract": verdict["strict"]})
    expected = {"strict-match": verdict["strict"], "flexible-extract": verdict["flexible"]}
    check("toy_gpqa", answer, expected)


def test_the_answers_word_is_not_its_letter() -> None:
    """The fact in words is not enough: the letter is asked for."""
    for task in ("toy_mmlu_pro", "toy_gpqa"):
        found = verdicts(task, lambda d: d["reference"].split(" . so the answer")[0])
        assert found.get("custom-extract", found.get("strict-match")) == 0.0
