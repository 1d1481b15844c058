"""What a benchmark gives for nothing: the best constant answer, or guessing among what is shown."""

from __future__ import annotations

from collections import Counter

from mars.embedded import bbh
from mars.embedded.corpus import held_out_items
from mars.embedded.ifeval import verify
from mars.embedded.problem import TEST_ITEMS, TEST_SEED, Problem

GUESS = {
    "toy_mmlu_pro": 1 / 10,
    "toy_gpqa": 1 / 4,
    "toy_bbh_boolean": 1 / 2,
    "toy_bbh_shuffled": 1 / bbh.PEOPLE,
    "toy_bbh_ranking": 1 / bbh.PEOPLE,
}
"""Expected score of a random choice among the answers that a question shows."""


def _best_list(items: list[Problem]) -> float:
    """The best that one constant list does on `toy_ifeval`, among the items' own answers."""
    scores = (
        sum(all(verify(text, item.extra["instructions"])["strict"]) for item in items)
        for text in sorted({item.answer for item in items})
    )
    return max(scores) / len(items)


def chance_level(task: str, n: int = TEST_ITEMS, seed: int = TEST_SEED) -> float:
    """The score, from 0 to 1, of the better of the best constant answer and a random guess."""
    if task == "toy_bbh":
        levels = [chance_level(f"toy_bbh_{name}", n, seed) for name in bbh.SUBTASKS]
        return sum(levels) / len(levels)
    items = held_out_items(task, n, seed)
    if task == "toy_ifeval":
        return _best_list(items)
    constant = Counter(item.answer for item in items).most_common(1)[0][1] / n
    return max(constant, GUESS.get(task, 0.0))
