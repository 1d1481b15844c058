"""The six real benchmarks through our adapter and records, without a network."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval.api.instance import Instance

from mars.config import Study
from mars.evaluation import lm_eval_model, run
from mars.evaluation.benchmarks import LoadedBenchmark, load_study, requests
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.real import DOCUMENTS, gpqa
from mars.evaluation.records import Record, RecordStore, read_records
from mars.evaluation.source import Source

from .conftest import FakeDecoders
from .six import BENCH, PARTS, SIX, byte_tokenizer, gold, needs_bench, study_of

pytestmark = pytest.mark.usefixtures("no_network")
GPQA = "gpqa_main_cot_zeroshot"
ORACLE = [name for name in SIX if name != "ifeval"]  # which has no gold text
GIVEN = os.environ.get("MARS_ORACLE_LIMIT", "2")
LIMIT = None if GIVEN == "all" else int(GIVEN)
"""Documents of each task that the oracle answers."""


@pytest.fixture(params=["made", pytest.param("bench", marks=[needs_bench, pytest.mark.slow])])
def root(request: pytest.FixtureRequest, made_root: Path) -> Path:
    """A data_root: a few made-up documents, or the benchmarks' own."""
    return made_root if request.param == "made" else BENCH


@pytest.fixture
def source() -> Source:
    return Source(byte_tokenizer(), "c0ffee", context=1 << 20, dtype="float32", load=lambda: None)


@pytest.fixture
def fake(source: Source, monkeypatch: pytest.MonkeyPatch) -> FakeDecoders:
    decoders = FakeDecoders(source.tokenizer)
    monkeypatch.setattr(lm_eval_model, "make_decoder", decoders.make)
    return decoders


@pytest.fixture
def out(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    def opened(_: Any, __: str, ___: str, generate: bool) -> Source:
        return source if generate else replace(source, load=None)

    monkeypatch.setattr(run, "open_checkpoint", opened)
    return tmp_path / "results" / "test" / "seed0" / "toy-s" / "mars_b4"


def evaluate(study: Study, out: Path, **arguments: Any) -> dict[str, dict[str, str]]:
    """Benchmark → its row of evaluation.csv."""
    run.evaluate_variant(study, 0, "toy-s", "mars_b4", "given", out, **arguments)
    return {row["benchmark"]: row for row in rows(out)}


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "evaluation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def records(out: Path, row: dict[str, str]) -> list[Record]:
    return read_records(out.parents[2] / row["records"])


def asked(source: Source, study: Study) -> Iterator[tuple[LoadedBenchmark, Any, Any]]:
    """Every benchmark, task and request of a study."""
    for loaded in load_study(study).values():
        for instance in requests(MarsLM(source), loaded, study.evaluation.limit):
            yield loaded, loaded.tasks[instance.task_name], instance


# ------------------------------------------------------------------------------------ scores


def test_an_oracle_scores_100(root: Path, source: Source, fake: FakeDecoders, out: Path) -> None:
    study = study_of(root, *ORACLE, limit=LIMIT)
    posed = [(i, gold(task, i.doc)) for _, task, i in asked(source, study)]
    right = {i.args[0]: text for i, text in posed}
    fake.answer = right.__getitem__
    # BBH asks two questions twice with opposite answers, of which one can be given; it stops at
    # any Q, so that the answer (Q) cannot be given
    lost = {(i.task_name, i.doc_id) for i, text in posed if right[i.args[0]] != text}
    for name, row in evaluate(study, out).items():
        made = records(out, row)
        cut = [record for record in made if name == "bbh" and record.finish == "stop"]
        failed = {(record.task, record.doc_id) for record in made if record.score != 1}
        assert failed == {key for key in lost if name == "bbh"} | {(r.task, r.doc_id) for r in cut}
        if root == BENCH and name == "bbh":
            assert (len(cut), len(lost)) == {"2": (1, 0), "all": (7, 2)}.get(
                GIVEN, (len(cut), len(lost))
            )
        share = 1 - len(failed) / len(made)
        assert float(row["score"]) == pytest.approx(100 * share, abs=1e-4), name
        assert float(row["truncated"]) == 0
        setup = json.loads((out / "evaluation" / name / "setup.json").read_text())
        assert setup["metric"] == SIX[name][1]
        assert {task["num_fewshot"] for task in setup["tasks"].values()} == {SIX[name][2]}
    fake.answer = lambda prompt: "Who knows."
    wrong = study_of(root, GPQA, "gsm8k_cot", "humaneval_instruct", limit=2)
    for name, row in evaluate(wrong, out.with_name("base")).items():
        assert float(row["score"]) == 0, name


def test_ifeval_follows_instructions(
    made_root: Path, source: Source, fake: FakeDecoders, out: Path
) -> None:
    study = study_of(made_root, "ifeval")
    fake.answer = lambda prompt: "Waves reach the harbour again and again"
    assert float(evaluate(study, out)["ifeval"]["score"]) == 100
    fake.answer = lambda prompt: "Waves, harbour"
    row = evaluate(study, out.with_name("base"))["ifeval"]
    metrics = json.loads(row["metrics"])
    assert float(row["score"]) == 0
    assert metrics["inst_level_strict_acc,none"] == pytest.approx(1 / 3)


@needs_bench
@pytest.mark.slow
def test_ifeval_scores_are_no_matter_of_chance(source: Source) -> None:
    [loaded] = load_study(study_of(BENCH, "ifeval")).values()
    task = loaded.tasks["ifeval"]
    texts = ["Oui, bien sûr, a house! * one\n* two\n\nP.S. done", "ALL IS WELL HERE, FRIEND."]

    def scores(seed: int) -> list[Any]:
        random.seed(seed)
        documents = list(task.eval_docs)[::9]
        return [task.process_results(doc, [text]) for doc in documents for text in texts]

    assert scores(1) == scores(2)


@needs_bench
def test_all_documents_are_there() -> None:
    names = ("ifeval", "gsm8k_cot", "humaneval_instruct")  # the others take their time: the oracle
    for name, loaded in load_study(study_of(BENCH, *names)).items():
        assert sum(len(task.eval_docs) for task in loaded.tasks.values()) == DOCUMENTS[name]


def test_shots_are_one_turn_unless_asked(made_root: Path, source: Source) -> None:
    part = PARTS["bbh"][0]
    turns = {}
    for multiturn in (False, True):
        study = study_of(made_root, part, limit=1, fewshot_as_multiturn=multiturn)
        [(_, _, instance)] = asked(source, study)
        turns[multiturn] = instance.args[0].count("<|im_start|>user")
        assert instance.args[0].count("A: Let's think step by step.") == 4
    assert turns == {False: 1, True: 4}


# ------------------------------------------------------------------------------------ records


def test_resumed_is_uninterrupted_and_scoring_anew_changes_nothing(
    made_root: Path, fake: FakeDecoders, out: Path
) -> None:
    study = study_of(made_root, GPQA, "gsm8k_cot", "humaneval_instruct", batch_size=1)
    fake.answer = lambda prompt: (
        "    return max(words, key=len)\n" if "longest" in prompt else "The answer is (B)."
    )
    fake.die_after = 3
    with pytest.raises(KeyboardInterrupt):
        evaluate(study, out)
    fake.die_after = None
    evaluate(study, out)
    assert fake.asked == 4 + 3 + 2
    straight = out.with_name("straight")
    evaluate(study, straight)
    for resumed, whole in zip(rows(out), rows(straight), strict=True):
        assert records(out, resumed) == records(straight, whole)
        for column in set(run.COLUMNS) - {"records"}:
            assert resumed[column] == whole[column]
    assert len({record.score for row in rows(out) for record in records(out, row)}) == 2
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    run.rescore(study, 0, "toy-s", "mars_b4", "given", out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert fake.asked == 2 * (4 + 3 + 2)


def test_results_never_collide(
    made_root: Path, fake: FakeDecoders, out: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = PARTS["bbh"][0]
    study = study_of(made_root, part, max_new_tokens=64)
    other = byte_tokenizer()
    other.chat_template += " "

    def with_(study: Study, **changes: Any) -> Study:
        evaluation = study.evaluation.model_copy(update=changes)
        return study.model_copy(update={"evaluation": evaluation})

    def more_blocks(study: Study) -> Study:
        variants = dict(study.variants)
        variants["mars_b4"] = variants["mars_b4"].model_copy(update={"block_size": 8})
        return study.model_copy(update={"variants": variants})

    changed: list[tuple[Study, dict[str, Any]]] = [
        (study, {}),
        (with_(study, thresholds=[0.95]), {}),
        (with_(study, thresholds=[0.9]), {}),
        (more_blocks(study), {}),
        (with_(study, max_new_tokens=63), {}),
        (with_(study, max_new_tokens="task"), {}),
        (with_(study, fewshot_as_multiturn=True), {}),
        (study, {"checkpoint": "another"}),
        (study, {"dtype": "bfloat16"}),
        (study, {"tokenizer": other}),
    ]
    prints = set()
    for number, (studied, given) in enumerate(changed, 1):
        monkeypatch.setattr(
            run, "open_checkpoint", lambda *_, given=given: replace(source, **given)
        )
        row = evaluate(studied, out)[part]
        assert fake.asked == 2 * number
        prints |= {record.fingerprint for record in records(out, row)}
    assert len(prints) == 2 * len(changed)


def test_the_budget_cuts_and_is_counted(made_root: Path, fake: FakeDecoders, out: Path) -> None:
    study = study_of(made_root, "gsm8k_cot", max_new_tokens=20)
    fake.answer = lambda prompt: (
        "9" if " 3 pots" in prompt else "Count them one by one, then say 1."
    )
    row = evaluate(study, out)["gsm8k_cot"]
    assert float(row["truncated"]) == pytest.approx(2 / 3, abs=1e-5)
    assert float(row["score"]) == pytest.approx(100 / 3, abs=1e-3)


def test_a_document_longer_than_the_context_is_counted(
    made_root: Path, fake: FakeDecoders, out: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(made_root, GPQA)
    instances = [instance for _, _, instance in asked(source, study)]
    lengths = [prompt for _, _, prompt, _ in MarsLM(source).needs(instances)]
    short = replace(source, context=max(lengths))
    monkeypatch.setattr(run, "open_checkpoint", lambda *_: short)
    fake.answer = lambda prompt: "(A)"
    row = evaluate(study, out)[GPQA]
    made = records(out, row)
    assert int(row["documents"]) == len(lengths)
    assert [r.finish for r in made].count("context") == lengths.count(max(lengths)) > 0
    assert all(r.truncated and r.score == 0 for r in made if r.finish == "context")


@pytest.mark.parametrize("decoding", [{"decoder": "ar"}, {"block_size": 4, "tau": 0.5}])
def test_batch_size_changes_no_output(
    made_root: Path, byte_checkpoint: Path, decoding: dict[str, Any]
) -> None:
    names = [PARTS[name][0] if name in PARTS else name for name in SIX]
    benchmarks = load_study(study_of(made_root, *names)).values()
    made: dict[int, dict[tuple[str, int], Record]] = {}
    for size in (1, 3, 16):
        lm = MarsLM(byte_checkpoint, size, max_new_tokens=12, device="cpu", **decoding)
        made[size] = {}
        for loaded in benchmarks:
            lm.use(lm.settings, RecordStore(), readers=loaded.readers)
            lm.generate_until(requests(lm, loaded, None), disable_tqdm=True)
            made[size] |= {(record.task, record.doc_id): record for record in lm.used}
    for size in (3, 16):
        near_ties = {
            key: min(alone.confidence)
            for key, alone in made[1].items()
            if replace(alone, seconds=0, confidence=[])
            != replace(made[size][key], seconds=0, confidence=[])
        }
        assert not near_ties, f"other outputs in batches of {size}: {near_ties}"


# --------------------------------------------------------------------------------------- GPQA


def windows(texts: list[str], width: int = 40) -> set[str]:
    return {text[at : at + width] for text in texts for at in range(len(text) - width + 1)}


def found_in(folder: Path, pieces: set[str], width: int = 40) -> list[Path]:
    """The files that hold one of the pieces, however JSON or Python may have written it."""
    found = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes().decode("utf-8", "replace")
        for form in (text, text.replace("\\n", "\n").replace('\\"', '"')):
            if any(form[at : at + width] in pieces for at in range(len(form) - width + 1)):
                found.append(path)
                break
    return found


def gpqa_texts(root: Path) -> list[str]:
    return [text for row in gpqa._rows("gpqa_main", root.resolve()) for text in row.values()]


def test_nothing_of_gpqa_is_written(
    root: Path, source: Source, fake: FakeDecoders, tmp_path: Path, out: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(temporary)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # of this alone
    study = study_of(root, GPQA, limit=40)
    fake.answer = lambda prompt: prompt[prompt.index("question:") :] + "\nThe answer is (C)."
    row = evaluate(study, out)[GPQA]
    run.rescore(study, 0, "toy-s", "mars_b4", "given", out)
    (tmp_path / "said").write_text("".join(capfd.readouterr()))
    pieces = windows(gpqa_texts(root))
    assert len(pieces) > 100
    assert found_in(tmp_path, pieces) == []
    for record in records(out, row):
        assert record.output == ""
        assert record.answers == {"strict-match": "(C)", "flexible-extract": "(C)"}
        assert len(record.output_hash or "") == 16
    assert 0 < float(row["score"]) < 100
    planted = tmp_path / "planted.json"
    planted.write_text(json.dumps({"text": gpqa_texts(root)[0][:41]}))
    assert found_in(tmp_path, pieces) == [planted]


SAYINGS: list[Callable[[dict[str, Any]], str]] = [
    lambda doc: "",
    lambda doc: "(A) or (B), so (D)",
    lambda doc: "The answer is (B).",
    lambda doc: "The answer is B. No, (C)",
    lambda doc: "The answer is c!!",
    lambda doc: f"The answer is {doc['choice2']}.",
    lambda doc: f"I say {doc['choice3']}",
    lambda doc: "the answer: B",
    lambda doc: "(E) is it. The answer is [invalid].",
    lambda doc: 'The answer is "(D)".\nThe answer is (A).',
]


def test_letters_score_as_the_answers_do(root: Path, source: Source) -> None:
    study = study_of(root, GPQA, limit=12)
    [loaded] = load_study(study).values()
    [task] = loaded.tasks.values()
    [open_task] = load_open(study).tasks.values()
    documents = list(task.eval_docs)[:12]
    asked = [(doc, saying(doc)) for doc in documents for saying in SAYINGS]
    kept = [(doc, json.dumps(loaded.readers[GPQA](doc, text))) for doc, text in asked]
    assert max(len(text) for _, text in kept) < 64
    found = scores(task, kept)
    assert found == scores(open_task, asked)
    assert {score for each in found for score in each.values()} == {0.0, 1.0}


def load_open(study: Study) -> LoadedBenchmark:
    """GPQA as lm-eval scores it, its filters untouched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpqa, "close", lambda task: None)
        [loaded] = load_study(study).values()
    return loaded


def scores(task: Any, said: list[tuple[dict[str, Any], str]]) -> list[dict[str, float]]:
    """What each filter of a task earns with each answer to a document."""
    instances = [Instance("generate_until", doc, ("",), 0, resps=[text]) for doc, text in said]
    for each in task._filters:
        each.apply(instances)
    return [
        {
            name: task.process_results(instance.doc, [read])["exact_match"]
            for name, read in instance.filtered_resps.items()
        }
        for instance in instances
    ]


def test_gpqa_does_not_drift(made_root: Path, tmp_path: Path) -> None:
    """Choices are shuffled alike, whatever else was loaded or drawn before."""
    alone = study_of(made_root, GPQA)
    beside = study_of(made_root, "gsm8k_cot", GPQA)
    random.seed(5)
    first = [dict(doc) for doc in load_study(alone)[GPQA].tasks[GPQA].eval_docs]
    gpqa._rows.cache_clear()
    shutil.copytree(made_root, tmp_path / "moved")
    moved = study_of(tmp_path / "moved", GPQA)
    for study in (beside, moved):
        task = load_study(study)[GPQA].tasks[GPQA]
        for _ in range(2):
            assert [dict(doc) for doc in task.eval_docs] == first
    assert len({doc["answer"] for doc in first}) > 1
