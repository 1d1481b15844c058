"""lm-eval's own ``hf`` model and ours read a toy task to the same text, document by document."""

from __future__ import annotations

from pathlib import Path

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

import mars.embedded
import mars.evaluation.lm_eval_model
from mars.evaluation.task_files import EMBEDDED_TASKS

CHECKPOINT = Path(mars.embedded.__path__[0]) / "checkpoints" / "toy-s"
DOCUMENTS = 8


def texts(model: str, arguments: str, task: str) -> dict[int, tuple[str, str]]:
    """Document → (prompt, response)."""
    results = lm_eval.simple_evaluate(
        model=model, model_args=f"pretrained={CHECKPOINT},dtype=float32,{arguments}",
        tasks=[task],
        task_manager=TaskManager(include_path=str(EMBEDDED_TASKS), include_defaults=False),
        limit=DOCUMENTS, batch_size=4, device="cpu", apply_chat_template=True,
        bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    return {
        sample["doc_id"]: (sample["arguments"][0][0], sample["resps"][0][0])
        for sample in results["samples"][task]
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["toy_gsm8k", "toy_ifeval"])
def test_hf_and_ours_say_the_same(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = texts("hf", "trust_remote_code=False", task)
    ours = texts("mars", "decoder=ar", task)
    assert len(theirs) == DOCUMENTS
    assert all(response.strip() for _, response in theirs.values())
    assert ours == theirs
