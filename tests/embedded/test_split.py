"""No test item shares its normalised problem with training; corpora are distinct and repeatable."""

from random import Random

import pytest

from mars.embedded import bbh, gsm8k
from mars.embedded.corpus import BENCHMARKS, PRETRAIN, conversations, held_out_items
from mars.embedded.facts import LINKS, RELATIONS, facts, state
from mars.embedded.problem import TEST_SEED, distinct_items, draw, held_out, numbers_key
from mars.embedded.words import BEINGS

TASKS = [*BENCHMARKS, *(f"toy_bbh_{name}" for name in bbh.SUBTASKS)]


def test_keys_forget_the_order_of_numbers() -> None:
    assert numbers_key("add", [5, 3]) == numbers_key("add", [3, 5])


@pytest.mark.parametrize("task", TASKS)
def test_test_items_are_held_out_and_distinct(task: str) -> None:
    items = held_out_items(task, 100, TEST_SEED)
    assert all(held_out(item.key) for item in items)
    assert len({item.prompt for item in items}) == 100
    assert items == held_out_items(task, 100, TEST_SEED)
    assert items != held_out_items(task, 100, TEST_SEED + 1)


def test_real_draws_of_training_never_meet_the_test() -> None:
    tested = {item.key for task in BENCHMARKS for item in held_out_items(task, 420, TEST_SEED)}
    rng = Random(0)
    makers = [*BENCHMARKS.values(), *(make for _, make in PRETRAIN)]
    trained = {draw(make, rng, test=False).key for make in makers for _ in range(1500)}
    assert not tested & trained
    assert len(tested) > 1000


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
def test_corpora_never_show_a_test_prompt(kind) -> None:
    prompts = {item.prompt for task in BENCHMARKS for item in held_out_items(task, 420, TEST_SEED)}
    shown = {c["messages"][0]["content"] for c in conversations(kind, 5000, seed=1)}
    assert not prompts & shown


def test_the_same_sum_in_another_format_has_the_same_key() -> None:
    rng = Random(1)
    skeletons = {gsm8k.drill(rng).key.split("|")[0] for _ in range(300)}
    assert "add-sub" in skeletons
    assert "add-sub" in {gsm8k.make(rng).key.split("|")[0] for _ in range(300)}


def test_stages_are_slices_of_one_sequence() -> None:
    whole = list(conversations("sft", 900, seed=5))
    assert list(conversations("sft", 300, seed=5, start=600)) == whole[600:]
    assert len({c["messages"][0]["content"] for c in whole}) == 900
    assert {c["task"].split("_")[1] for c in whole} == {t.split("_")[1] for t in BENCHMARKS}
    pretrain = list(conversations("pretrain", 300, seed=5))
    assert list(conversations("pretrain", 100, seed=5, start=200)) == pretrain[200:]


def test_every_fact_is_stated_in_training() -> None:
    shown = {
        sentence
        for conversation in conversations("pretrain", 30_000, seed=2)
        for sentence in conversation["messages"][1]["content"].split(" . ")
    }
    shown |= {sentence.removesuffix(" .") for sentence in shown}
    assert {state(being, relation) for being, relation in facts()} <= shown


def test_question_forms_and_fact_pairs_are_held_out() -> None:
    forms = {f"{b}-{r}-{i}" for b in BEINGS for r in RELATIONS for i in range(3)}
    pairs = {f"{b}-{link}-{r}" for b in BEINGS for link in LINKS for r in RELATIONS}
    for keys, task in ((forms, "toy_mmlu_pro"), (pairs, "toy_gpqa")):
        tested = {item.key for item in held_out_items(task, 420, TEST_SEED)}
        assert tested <= keys
        assert 0.1 < len(tested) / len(keys) < 0.3


def test_unknown_corpus() -> None:
    with pytest.raises(ValueError, match="unknown corpus"):
        conversations("other", 1, seed=0)  # type: ignore[arg-type]


def test_asking_for_too_many_items() -> None:
    one = draw(gsm8k.make, Random(0), test=True)
    with pytest.raises(ValueError, match="fewer items"):
        list(distinct_items(lambda _: one, 2, 0, "one"))
