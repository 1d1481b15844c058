"""What graders need is there, or that is one line before a model runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import nltk
import pytest

from mars.config import Benchmark
from mars.evaluation import sandbox
from mars.evaluation.benchmarks import load_benchmarks, load_study
from mars.evaluation.code_eval import METRIC
from mars.evaluation.real import gpqa, graders
from mars.evaluation.source import EvaluationError

from .six import said, study_of


def test_nltk_is_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    shutil.rmtree(root / "nltk_data" / "tokenizers")
    monkeypatch.setattr(nltk.data, "path", [])
    line = said(study_of(root, "ifeval"))
    assert "NLTK's punkt_tab, which its grader needs, is missing or not whole; put it into" in line
    downloads: list[Any] = []
    monkeypatch.setattr(nltk, "download", lambda *names, **_: downloads.append(names))
    with pytest.raises(EvaluationError, match="run `python -m nltk"):
        graders.prepare_ifeval(None, "evaluation.benchmarks.ifeval")
    assert downloads == [("punkt_tab",)]


@pytest.mark.parametrize("file", [None, "ortho_context.tab"])
def test_nltk_s_tables_are_not_whole(
    file: str | None, root: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    """Their folder alone is not enough: it is seen here, not after everything is decoded."""
    monkeypatch.setattr(nltk.data, "path", [])
    load_study(study_of(root, "ifeval"))
    tables = root / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    for path in tables.iterdir():
        if file is None:
            path.unlink()
        elif path.name == file:
            path.write_bytes(path.read_bytes()[:-3])
    assert "NLTK's punkt_tab, which its grader needs, is missing" in said(study_of(root, "ifeval"))


def test_nltk_s_tables_are_not_as_fetched(root: Path) -> None:
    file = root / "nltk_data" / "tokenizers" / "punkt_tab" / "english" / "abbrev_types.txt"
    note = {"files": {file.relative_to(root).as_posix(): {"size": file.stat().st_size + 1}}}
    (root / "manifest.json").write_text(json.dumps(note))
    assert f"{file}: {file.stat().st_size} bytes, where" in said(study_of(root, "ifeval"))


def test_code_is_graded_in_the_sandbox_or_not_at_all(root: Path, tmp_path: Path) -> None:
    [task] = load_study(study_of(root, "humaneval_instruct"))["humaneval_instruct"].tasks.values()
    assert graders.graded_in_the_sandbox(task)
    (tmp_path / "risky.py").write_text("def exec_it(references, predictions): return 1.0\n")
    (tmp_path / "risky.yaml").write_text(
        f"""
task: risky
dataset_path: {root / "humaneval"}
test_split: test
output_type: generate_until
unsafe_code: true
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{test}}}}"
metric_list: [{{metric: !function risky.exec_it, aggregation: mean, higher_is_better: true}}]
"""
    )
    wanted = {"risky": Benchmark(column="x", metric="exec_it,none")}
    with pytest.raises(EvaluationError, match="risky: it runs model-written code in this process"):
        load_benchmarks(wanted, [tmp_path])


def test_no_sandbox_no_humaneval(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: Any) -> Any:
        raise sandbox.SandboxError("no sandbox can be had here; allow it")

    monkeypatch.setattr(METRIC, "compute", none)
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.humaneval.utils", raising=False)
    line = said(study_of(root, "humaneval_instruct"))
    assert line == "evaluation.benchmarks.humaneval_instruct: no sandbox can be had here; allow it"


def test_unprotected_is_only_by_the_studys_word(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []
    monkeypatch.setattr(sandbox, "allow_unprotected", allowed.append)
    load_study(study_of(root, "gsm8k_cot", model_written_code="unprotected"))
    load_study(study_of(root, "gsm8k_cot"))
    assert allowed == [True, False]


def test_what_reads_letters_has_a_name_that_changes_with_it(root: Path) -> None:
    study = study_of(root, "gpqa_main_cot_zeroshot")
    [first], [second] = (load_study(study).values() for _ in range(2))
    [reader], [again] = first.readers.values(), second.readers.values()
    assert reader.identity == again.identity
    [task] = second.tasks.values()
    task.config.filter_list[0]["filter"][0]["regex_pattern"] = "other"
    assert gpqa.close(task).identity != reader.identity
