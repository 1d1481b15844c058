"""The arrival trace of a study: its rows, and scores that are lm-eval's own."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from mars.cli import main
from mars.config import Decoding, load_study, parse_study
from mars.decoding import Generation
from mars.evaluation.benchmarks import load_benchmarks, run_benchmark
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.source import EvaluationError
from mars.evaluation.throughput.arrivals import COLUMNS, Questions, measure_arrivals, summarise
from mars.evaluation.throughput.trace import Arrival, Served

from .conftest import REPOSITORY

MARS = Decoding(decoder="mars", block_size=4, tau=0.95)


def study_with(**changed):
    """The miniature study, with other settings of its throughput section."""
    raw = yaml.safe_load((REPOSITORY / "tests" / "mini.yaml").read_text())
    raw["throughput"] |= changed
    return parse_study(raw)


def trace(requests):
    return {"slots": 2, "requests": [requests], "loads": [1.0], "thresholds": [0.95]}


@pytest.fixture
def right(tokenizer):
    """The right answer to a document, as a model would give it."""

    def answer(doc):
        ids = tokenizer.encode(f" #### {doc['answer']}".replace("####  ", "#### "))
        return Generation([*ids, tokenizer.eos_token_id], [1] * (len(ids) + 1), "end_of_turn")

    return answer


def documents(benchmark):
    [task] = benchmark.tasks.values()
    return list(task.eval_docs)


@pytest.mark.parametrize("name", ["toy_gsm8k", "toy_ifeval"])
def test_scores_are_lm_evals_of_the_same_texts(source, fake, tokenizer, name):
    colours = " RED / BLUE / GREEN / PINK / GOLD / GREY / IVORY"
    fake.answer = lambda prompt: colours if "colours" in prompt else " #### 83"
    study = study_with(trace=trace(6), benchmark=name, max_new_tokens=24)
    lm = MarsLM(source, max_new_tokens=24, **MARS.model_dump())
    loaded = load_benchmarks({name: study.evaluation.benchmarks[name]})[name]
    expected = run_benchmark(lm, loaded, limit=6).scores
    asked = Questions(study, study.throughput, source, MARS)
    scores = asked.scores([made for _, made in sorted(fake.stream(asked.to_decode))])
    assert [asked.name(number) for number in range(6)] == [str(number) for number in range(6)]
    assert scores == [expected[name, number] for number in range(6)]
    assert 0 < sum(scores) < 6


def test_a_document_asked_again_is_scored_by_its_own_answer(source, right):
    [benchmark] = load_benchmarks(
        {"toy_gsm8k": study_with().evaluation.benchmarks["toy_gsm8k"]}
    ).values()
    docs = documents(benchmark)
    count = len(docs) + 5
    study = study_with(trace=trace(count))
    asked = Questions(study, study.throughput, source, MARS)
    names = [asked.name(number) for number in range(count)]
    assert names == [str(number) for number in [*range(len(docs)), *range(5)]]
    answers = [right(docs[int(name)]) for name in names]
    assert asked.scores(answers) == [1.0] * count
    for number in (1, len(docs), len(docs) + 3):
        answers[number] = right({"answer": "12345"})
    scores = asked.scores(answers)
    assert [number for number in range(count) if not scores[number]] == [
        1,
        len(docs),
        len(docs) + 3,
    ]


def test_a_trace_from_the_command_line(tmp_path, capsys):
    study = REPOSITORY / "tests" / "mini.yaml"
    out = tmp_path / "seed0" / "arrivals.csv"
    words = ["--config", str(study), "--seed", "0", "--checkpoint", "embedded:toy-s"]
    assert main(["arrivals", *words, "--out", str(out)]) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    plan = load_study(study).throughput.trace
    assert [row["policy"] for row in rows] == ["tau 0.95"] * 8 + ["controller"] * 8
    for part in (rows[:8], rows[8:]):
        assert [int(row["request"]) for row in part] == list(range(8))
        assert [int(row["phase"]) for row in part] == [0] * 2 + [1] * 4 + [2] * 2
        for row in part:
            times = [float(row[c]) for c in ("arrival", "start", "first_token", "finish")]
            assert times == sorted(times)
            assert 1 <= int(row["forwards"]) <= int(row["tokens"]) <= 16
            assert row["score"] in ("0.0", "1.0")
    assert [row["arrival"] for row in rows[:8]] == [row["arrival"] for row in rows[8:]]
    assert {row["tau_start"] for row in rows[:8]} == {"0.95"}
    taus = [float(row[c]) for row in rows[8:] for c in ("tau_start", "tau_end")]
    assert all(plan.tau_low <= tau <= plan.tau_high for tau in taus)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(summary) == ["tau 0.95", "controller"]
    assert set(summary["controller"]) >= {"median_latency_seconds", "p95_latency_seconds", "score"}
    made = json.loads(out.with_suffix(".environment.json").read_text(encoding="utf-8"))
    assert made["service_rate"] > 0
    assert "one after another" in made["order"]
    assert made["warm_up"]


def test_an_interrupted_trace_says_that_it_begins_anew(tmp_path, capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mars.evaluation.throughput.arrivals.measure_arrivals", interrupted)
    words = ["--config", str(REPOSITORY / "tests" / "mini.yaml"), "--seed", "0"]
    words += ["--checkpoint", "embedded:toy-s", "--out", str(tmp_path / "arrivals.csv")]
    assert main(["arrivals", *words]) == 130
    assert "interrupted; the same command begins anew" in capsys.readouterr().err


def test_a_summary_is_of_latencies_busy_time_and_scores():
    served = [
        Served(Arrival(0, 1.0), 0, finish=1.0 + n, generation=Generation([1] * 6, [3, 3]))
        for n in range(1, 22)
    ]
    line = summarise(served, [1.0] * 7 + [0.0] * 14, busy=42.0)
    assert line == {
        "median_latency_seconds": 11.0,
        "p95_latency_seconds": 20.0,
        "tokens_per_s": 3.0,
        "tokens_per_forward": 3.0,
        "score": 33.33,
    }


def test_a_study_without_a_trace_is_told_so(tmp_path):
    with pytest.raises(EvaluationError, match=r"no throughput.trace"):
        measure_arrivals(study_with(trace=None), 0, "embedded:toy-s", tmp_path / "a.csv")
