"""Gold answers score 100 on every toy benchmark, and canned wrong ones what they must."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mars.config import Study
from mars.evaluation import run
from mars.evaluation.benchmarks import load_benchmarks
from mars.evaluation.records import read_records
from mars.evaluation.source import Source

from .conftest import TOY, FakeDecoders


def rows(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (out / "evaluation.csv").open(newline="") as file:
        return {(row["benchmark"], row["tau"]): row for row in csv.DictReader(file)}


@pytest.fixture
def whole(study: Study) -> Study:
    evaluation = study.evaluation.model_copy(update={"limit": None, "batch_size": 64})
    return study.model_copy(update={"evaluation": evaluation})


@pytest.fixture
def out(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "open_checkpoint", lambda *_: source)
    return tmp_path / "results" / "test" / "seed0" / "toy-s" / "ar_sft"


def gold(study: Study, tokenizer: Any) -> dict[str, str]:
    """Prompt as the decoder sees it → the reference response."""
    answers = {}
    for benchmark in load_benchmarks(study.evaluation.benchmarks).values():
        for task in benchmark.tasks.values():
            for doc in task.eval_docs:
                chat = [{"role": "user", "content": doc["prompt"]}]
                prompt = tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True
                )
                answers[prompt] = doc["reference"]
    return answers


def test_oracle_scores_100(whole: Study, out: Path, fake: FakeDecoders, tokenizer: Any) -> None:
    answers = gold(whole, tokenizer)
    fake.answer = answers.__getitem__
    run.evaluate_variant(whole, 0, "toy-s", "ar_sft", "given", out)
    made = rows(out)
    assert {name for name, _ in made} == set(TOY)
    for (name, _), row in made.items():
        assert float(row["score"]) == 100, name
        assert int(row["documents"]) >= 400
        assert float(row["truncated"]) == 0
        assert all(value == 1 for value in json.loads(row["metrics"]).values())
        records = read_records(out.parents[2] / row["records"])
        assert len(records) == int(row["documents"])
        assert {record.score for record in records} == {1.0}
    assert fake.asked == len(answers)

    fake.answer = lambda prompt: "no idea"
    wrong = out.with_name("base")
    run.evaluate_variant(whole, 0, "toy-s", "base", "given", wrong)
    for (name, _), row in rows(wrong).items():
        assert float(row["score"]) <= 15, name
