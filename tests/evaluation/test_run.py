"""A variant is evaluated, resumed and scored again; what cannot work is said first."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mars import cli
from mars.config import Benchmark, ConfigError, Study, dump_study
from mars.decoding.attention import used_on
from mars.evaluation import lm_eval_model, records, run, task_files
from mars.evaluation.benchmarks import load_benchmarks
from mars.evaluation.records import Record, RecordError, read_records
from mars.evaluation.source import EvaluationError, Source
from mars.models import CheckpointError, load_model, load_tokenizer, mask_token_id

from .conftest import TOY, FakeDecoders


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "evaluation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def out(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    def opened(_: Any, __: str, ___: str, generate: bool) -> Source:
        return source if generate else replace(source, load=None)

    monkeypatch.setattr(run, "open_checkpoint", opened)
    return tmp_path / "results" / "test" / "seed0" / "toy-s" / "mars_b4"


@pytest.fixture
def small(study: Study) -> Study:
    evaluation = study.evaluation
    kept = {name: evaluation.benchmarks[name] for name in ("toy_bbh", "toy_gsm8k")}
    return study.model_copy(
        update={"evaluation": evaluation.model_copy(update={"benchmarks": kept})}
    )


def _evaluate(study: Study, out: Path) -> None:
    run.evaluate_variant(study, 0, "toy-s", "mars_b4", "given", out)


def test_rows_and_records(study: Study, out: Path, fake: FakeDecoders) -> None:
    _evaluate(study, out)
    made = rows(out)
    assert [(row["benchmark"], row["tau"]) for row in made] == [
        (name, tau) for name in TOY for tau in ("1.0", "0.95")
    ]
    for row in made:
        assert set(row) == set(run.COLUMNS)
        kept = read_records(out.parents[2] / row["records"])
        assert row["records"].startswith("seed0/toy-s/mars_b4/evaluation/")
        documents = 42 if row["benchmark"] == "toy_bbh" else 6
        assert int(row["documents"]) == len(kept) == documents
        assert int(row["tokens"]) == sum(record.tokens for record in kept)
        assert int(row["forwards"]) == sum(record.forwards for record in kept)
        assert all(record.score is not None for record in kept)
        metrics = json.loads(row["metrics"])
        assert metrics[row["metric"]] * 100 == pytest.approx(float(row["score"]), abs=1e-3)
        if row["metric"] != "exact_match,get-answer":
            mean = sum(record.score or 0 for record in kept) / documents
            assert mean * 100 == pytest.approx(float(row["score"]), abs=1e-3)
        assert (out / "evaluation" / row["benchmark"] / "setup.json").is_file()


def test_killed_and_resumed(small: Study, out: Path, fake: FakeDecoders) -> None:
    fake.die_after = 3
    with pytest.raises(KeyboardInterrupt):
        _evaluate(small, out)
    assert not (out / "evaluation.csv").exists()
    fake.die_after = None
    _evaluate(small, out)
    assert fake.asked == 2 * (42 + 6)
    straight = out.with_name("straight")
    _evaluate(small, straight)
    for resumed, whole in zip(rows(out), rows(straight), strict=True):
        for column in set(run.COLUMNS) - {"seconds", "records"}:
            assert resumed[column] == whole[column]
    asked = fake.asked
    before = (out / "evaluation.csv").read_text()
    _evaluate(small, out)
    assert fake.asked == asked
    assert (out / "evaluation.csv").read_text() == before


def test_rescoring_runs_no_model(small: Study, out: Path, fake: FakeDecoders) -> None:
    with pytest.raises(EvaluationError, match="have no record"):
        run.rescore(small, 0, "toy-s", "mars_b4", "given", out)
    _evaluate(small, out)
    before = (out / "evaluation.csv").read_text()
    asked = fake.asked
    (out / "evaluation.csv").unlink()
    run.rescore(small, 0, "toy-s", "mars_b4", "given", out)
    assert fake.asked == asked
    assert (out / "evaluation.csv").read_text() == before


def test_records_of_a_gpu_are_scored_again_by_a_command_without_one(
    small: Study, out: Path, fake: FakeDecoders, source: Source, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    there = replace(source, dtype="bfloat16", device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(run, "open_checkpoint", lambda *_: there)
        _evaluate(small, out)
    assert {(row["dtype"], row["device"]) for row in rows(out)} == {("bfloat16", "cuda")}
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    asked = fake.asked
    made = small.evaluation.model_copy(update={"panels": []})
    alone = {"evaluation": made, "throughput": None, "training_cost": None}
    (tmp_path / "study.yaml").write_text(dump_study(small.model_copy(update=alone)))
    words = ["evaluate", "--rescore", "--config", str(tmp_path / "study.yaml"), "--seed", "0"]
    words += ["--scale", "toy-s", "--variant", "mars_b4", "--checkpoint", "given"]
    (out / "evaluation.csv").unlink()
    assert cli.main([*words, "--out", str(out)]) == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert fake.asked == asked


def test_a_cpus_records_are_not_a_gpus(
    small: Study, out: Path, fake: FakeDecoders, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate(small, out)
    asked = fake.asked
    for device, decoded in (("cuda", 2), ("cuda:1", 2), ("cpu", 2)):  # GPUs are alike
        monkeypatch.setattr(run, "open_checkpoint", lambda *_, d=device: replace(source, device=d))
        _evaluate(small, out)
        assert fake.asked == decoded * asked


def test_a_row_tells_what_shaped_it(small: Study, out: Path, fake: FakeDecoders) -> None:
    _evaluate(small, out)
    [loaded] = load_benchmarks({"toy_gsm8k": small.evaluation.benchmarks["toy_gsm8k"]}).values()
    for row in rows(out):
        assert (row["max_new_tokens"], row["dtype"], row["device"]) == (
            str(small.evaluation.max_new_tokens), "float32", "cpu"
        )  # fmt: skip
        setup = json.loads((out / "evaluation" / row["benchmark"] / "setup.json").read_text())
        assert row["chat_template"] == setup["chat_template"]
        assert {task["version"] for task in setup["tasks"].values()} == {row["version"]}
        assert row["available"] == row["expected"]
        if row["benchmark"] == "toy_gsm8k":
            assert int(row["available"]) == loaded.available > int(row["documents"])


def test_a_new_checkpoint_is_a_new_result(
    small: Study, out: Path, fake: FakeDecoders, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate(small, out)
    asked = fake.asked
    before = (out / "evaluation.csv").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(run, "open_checkpoint", lambda *_: replace(source, checkpoint="new"))
        _evaluate(small, out)
    assert fake.asked == 2 * asked
    assert {row["checkpoint"] for row in rows(out)} == {"new"}
    for row in rows(out):
        path = out.parents[2] / row["records"]
        assert len(read_records(path)) == int(row["documents"])
        assert len(read_records(path.with_suffix(".earlier.jsonl"))) == int(row["documents"])
    _evaluate(small, out)
    assert fake.asked == 2 * asked  # the first one's are still there
    assert (out / "evaluation.csv").read_text() == before


def test_a_smaller_limit_and_back_decodes_nothing(
    small: Study, out: Path, fake: FakeDecoders
) -> None:
    _evaluate(small, out)
    asked, before = fake.asked, (out / "evaluation.csv").read_text()
    fewer = small.evaluation.model_copy(update={"limit": 2})
    _evaluate(small.model_copy(update={"evaluation": fewer}), out)
    assert {row["documents"] for row in rows(out)} == {"14", "2"}
    for row in rows(out):  # whoever reads the file sees what belongs to the result
        assert len(read_records(out.parents[2] / row["records"])) == int(row["documents"])
    for _ in range(2):
        _evaluate(small, out)
        assert (out / "evaluation.csv").read_text() == before
    assert fake.asked == asked


def test_a_full_disk(
    small: Study, out: Path, fake: FakeDecoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = records._append, []

    def full(path: Path, made: Iterable[Record]) -> None:
        calls.append(path)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        real(path, made)

    with monkeypatch.context() as patch:
        patch.setattr(records, "_append", full)
        patch.setattr(lm_eval_model, "KEEP_SECONDS", -1.0)  # keep each as it finishes
        with pytest.raises(RecordError):
            _evaluate(small, out)
    (path,) = (out / "evaluation" / "toy_bbh").glob("*.jsonl")
    assert len(read_records(path)) == 2
    fake.batches.clear()
    _evaluate(small, out)
    assert fake.asked == 2 * (42 + 6) - 2


def test_mistakes_are_named_first(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{study.study}: variants: unknown 'mars_b5'"):
        run.evaluate_variant(study, 0, "toy-s", "mars_b5", "x", tmp_path)
    with pytest.raises(ConfigError, match="scales: unknown 'toy-l'"):
        run.evaluate_variant(study, 0, "toy-l", "mars_b4", "x", tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        run.evaluate_variant(study, 0, "toy-s", "mars_b4", tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize(
    ("name", "metric", "message"),
    [
        ("toy_gsm8k", "exact_match,strict", "did you mean 'exact_match,strict-match'"),
        ("toy_bbh", "acc,none", "it reports exact_match,get-answer"),
    ],
)
def test_unknown_metric(name: str, metric: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        load_benchmarks({name: Benchmark(column="x", metric=metric)})


def test_a_folder_that_lies_at_the_top() -> None:
    for folder in ("/run", "/tmp/run"):
        told = run._relative(Path(folder) / "evaluation" / "x.jsonl", Path(folder))
        assert told == f"{folder[1:]}/evaluation/x.jsonl"


def test_a_share_is_not_scored_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--rescore", "--share", "0/2"])
    assert "--share: not allowed with argument --rescore" in capsys.readouterr().err


def test_unknown_task(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = task_files.TaskManager

    def only_ours(include_path: Any, include_defaults: bool = False) -> Any:
        return ours(include_path=include_path, include_defaults=False)

    monkeypatch.setattr(task_files, "TaskManager", only_ours)  # the others take half a minute
    with pytest.raises(EvaluationError, match="toy_gsm: no such lm-eval task; did you mean"):
        load_benchmarks({"toy_gsm": Benchmark(column="x", metric="exact_match,strict-match")})


SHUFFLED = """
task: shuffled
custom_dataset: !function shuffled.load
process_docs: !function shuffled.shuffle
output_type: generate_until
test_split: test
num_fewshot: 0
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 3}
"""
SHUFFLED_CODE = """
import random
from datasets import Dataset
def load(**_):
    return {"test": Dataset.from_list([{"question": str(i), "answer": str(i)} for i in range(9)])}
def shuffle(documents):
    return documents.select(random.sample(range(len(documents)), len(documents)))
"""


def test_other_tasks_and_shuffles_do_not_drift(
    small: Study, out: Path, fake: FakeDecoders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shuffled.yaml").write_text(SHUFFLED)
    (tmp_path / "shuffled.py").write_text(SHUFFLED_CODE)
    wanted = {"shuffled": Benchmark(column="x", metric="exact_match,none")}
    evaluation = small.evaluation.model_copy(update={"benchmarks": wanted, "panels": []})
    study = small.model_copy(update={"evaluation": evaluation})
    fake.answer = lambda prompt: "".join(filter(str.isdigit, prompt))
    monkeypatch.setattr(run, "load_study", lambda _: load_benchmarks(wanted, [tmp_path]))
    _evaluate(study, out)
    assert [row["score"] for row in rows(out)] == ["100.0", "100.0"]
    assert fake.asked == 12
    _evaluate(study, out)
    assert fake.asked == 12


def test_with_a_model(small: Study, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "test" / "seed0" / "toy-s" / "mars_b4"
    run.evaluate_variant(small, 0, "toy-s", "mars_b4", checkpoint, out)
    for row in rows(out):
        assert float(row["tokens_per_forward"]) >= 1
        kept = read_records(out.parents[2] / row["records"])
        assert all(sum(r.accepted) == r.tokens == len(r.confidence) for r in kept)
        if row["tau"] == "1.0":
            assert all(set(record.accepted) == {1} for record in kept)
    setup = json.loads((out / "evaluation" / "toy_bbh" / "setup.json").read_text())
    model, tokenizer = load_model(checkpoint, "float32", "cpu"), load_tokenizer(checkpoint)
    assert setup["mask_token_id"] == mask_token_id(model, tokenizer)
    assert setup["mask_token_source"] == model.config.mask_token_source
    assert "two batched products" in setup["attention"]
    assert "two batched products" not in used_on("cuda")
