"""The toy benchmarks under lm-eval: an oracle scores 1, nonsense 0, in every metric."""

import importlib.util
import json
from pathlib import Path

import pytest

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.model import LM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

FOLDER = Path(__file__).parents[2] / "mars/evaluation/tasks/embedded"
TASKS = ["toy_gsm8k", "toy_bbh", "toy_mmlu_pro", "toy_gpqa", "toy_ifeval"]
if importlib.util.find_spec("mars.evaluation.sandbox"):
    TASKS.append("toy_humaneval")


class Canned(LM):
    """Answers each document by a function of it."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer = answer

    def generate_until(self, requests):
        return [self.answer(request.doc) for request in requests]

    def loglikelihood(self, requests):
        raise AssertionError("every toy task generates text")

    loglikelihood_rolling = loglikelihood


def _scores(answer) -> dict[tuple[str, str], float]:
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=Canned(answer), tasks=TASKS, task_manager=manager, limit=6, bootstrap_iters=0
    )
    return {
        (task, metric): value
        for task, scores in results["results"].items()
        for metric, value in scores.items()
        if isinstance(value, float) and "stderr" not in metric
    }


def test_oracle_scores_one() -> None:
    scores = _scores(lambda doc: f" {doc['reference']}")
    assert {task for task, _ in scores} >= set(TASKS)
    assert ("toy_bbh", "exact_match,get-answer") in scores
    assert ("toy_gsm8k", "exact_match,strict-match") in scores
    assert ("toy_ifeval", "inst_level_loose_acc,none") in scores
    assert set(scores.values()) == {1.0}


def test_nonsense_scores_zero() -> None:
    scores = _scores(lambda doc: " zorb zorb")
    assert {value for (_, metric), value in scores.items() if "inst_level" not in metric} == {0.0}
    assert all(value < 0.6 for value in scores.values())


def test_documents_are_plain() -> None:
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    task = manager.load(["toy_gsm8k"])["tasks"]["toy_gsm8k"]
    docs = list(task.test_docs())
    assert len(docs) == 420
    assert json.loads(docs[0]["extra"]) == {}
