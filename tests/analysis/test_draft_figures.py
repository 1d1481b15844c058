"""What figures of drafts show, against answers small enough to work out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from mars.analysis.figures import accepted_counts, data, draw, reliability, score_tau, spans
from mars.analysis.parts import applies
from mars.config import Study, parse_study

from . import synthetic


def small(**evaluation: object) -> Study:
    raw = synthetic.embedded().model_dump(mode="json")
    raw |= {"study": "small", "scales": {"toy-s": raw["scales"]["toy-s"]}}
    raw |= {"throughput": None, "training_cost": None}
    raw["variants"] = {n: raw["variants"][n] for n in ("base", "ar_sft", "mars_b4")}
    known = raw["evaluation"]["benchmarks"]
    raw["evaluation"] |= {
        "benchmarks": {name: known[name] for name in ("toy_gsm8k", "toy_humaneval")},
        "panels": ["toy_gsm8k"],
        "sweep": "none",
        "thresholds": [1.0, 0.5],
        "acceptance": None,
        "jacobi": None,
        **evaluation,
    }
    return parse_study(raw)


def answer(doc: int, text: str, accepted: list[int], confidence: list[float], **more: object):
    """A record; a text of n words is n tokens, and the end of turn is one more."""
    ended = {"task": "toy_gsm8k", "doc_id": doc, "repeat": 0, "output": text, "score": 1.0}
    counts = {"tokens": sum(accepted), "forwards": len(accepted), "accepted": accepted}
    rest = {"confidence": confidence, "finish": "end_of_turn", "truncated": False, "seconds": 0.1}
    return ended | counts | rest | more


def write(folder: Path, answers: dict[float, list[dict]]) -> Path:
    """A results folder in which mars_b4 answered toy_gsm8k at each τ."""
    run = folder / "seed0/toy-s/mars_b4"
    rows = []
    for tau, records in answers.items():
        path = run / f"evaluation/toy_gsm8k/tau{tau}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        tokens, forwards = (sum(r[name] for r in records) for name in ("tokens", "forwards"))
        head = {"study": "small", "seed": 0, "scale": "toy-s", "variant": "mars_b4"}
        how = {"decoder": "mars", "block_size": 4, "tau": tau, "rule": "probability"}
        what = {"benchmark": "toy_gsm8k", "metric": "exact_match", "cache": "cursor"}
        score = 100 * float(np.mean([r["score"] for r in records]))
        counted = {"score": score, "documents": len(records), "tokens": tokens}
        counted |= {"forwards": forwards, "tokens_per_forward": tokens / forwards}
        where = {"truncated": 0.0, "records": path.relative_to(folder).as_posix()}
        rows.append(head | what | how | counted | where)
    synthetic.write_csv(run / "evaluation.csv", rows)
    return folder


ONE = [  # at τ = 1
    answer(0, " the answer is 18 .", [1] * 6, [1.0] * 6),
    answer(1, " so they have 7 .", [1] * 6, [1.0] * 6),
    answer(2, " 4 apples", [1] * 3, [1.0] * 3),
    answer(3, " the 1 8", [1] * 3, [1.0] * 3),  # a text that is not the tokens counted
    answer(5, " have 7 and 4", [1] * 4, [1.0] * 4, finish="budget"),
]
HALF = [  # at τ = 0.5
    answer(0, " the answer is 18 .", [2, 4], [0.3, 0.95, 0.9, 0.8, 0.6, 1.0]),
    # the third token differs: it is wrong, and the three after it say nothing
    answer(1, " so they are 7 .", [1, 3, 2], [0.9, 0.4, 0.7, 0.55, 0.99, 0.99]),
    answer(2, " 4 apples are", [4], [0.9, 0.99, 0.75, 0.5]),  # it goes on where τ = 1 ended
    answer(3, " the 1 8", [3], [1.0, 1.0, 1.0]),
    answer(4, " so", [2], [1.0, 1.0]),  # not asked at τ = 1
    answer(5, " have 7 and 4", [2, 2], [0.9, 0.9, 0.9, 0.6], finish="budget"),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("small") / "small", {1.0: ONE, 0.5: HALF})


def test_a_token_is_judged_up_to_the_first_that_differs(measured):
    tokens = reliability.judged(small(), measured)
    found = list(zip(tokens["offset"], tokens["confidence"].round(2), tokens["right"], strict=True))
    first = [(0, 0.3, 1), (1, 0.95, 1), (0, 0.9, 1), (1, 0.8, 1), (2, 0.6, 1), (3, 1.0, 1)]
    second = [(0, 0.9, 1), (0, 0.4, 1), (1, 0.7, 0)]
    third = [(0, 0.9, 1), (1, 0.99, 1), (2, 0.75, 0)]
    last = [(0, 0.9, 1), (1, 0.9, 1), (0, 0.9, 1), (1, 0.6, 1)]
    assert found == [*first, *second, *third, *last]


def test_a_stop_may_have_cut_the_last_token_so_it_is_not_judged(tmp_path):
    stopped = [answer(0, " is 18", [1, 1, 1], [0.9] * 3, finish="stop")]
    other = [answer(0, " is 7", [3], [0.9] * 3, finish="stop")]
    tokens = reliability.judged(small(), write(tmp_path, {1.0: stopped, 0.5: other}))
    assert list(tokens["right"]) == [True]


def test_reliability_counts_by_place_in_the_draft_and_confidence(measured):
    bins = data("reliability", small(), measured)
    second = bins[bins["first"] == 1].set_index("low")
    assert dict(second["tokens"]) == {0.6: 1, 0.7: 1, 0.8: 1, 0.9: 1, 0.95: 1, 0.99: 1}
    assert dict(second["right"]) == {0.6: 1, 0.7: 0, 0.8: 1, 0.9: 1, 0.95: 1, 0.99: 1}
    assert (bins[bins["first"] == 0]["right"] == 1).all()  # it reads no mask
    assert bins["tokens"].sum() == 16
    wrong = second.loc[0.7]
    assert (wrong["lower"], wrong["upper"]) == (pytest.approx(0), pytest.approx(0.793, abs=1e-3))


def test_agreement_ends_with_the_first_difference_or_the_shorter_text():
    assert list(reliability.agreement([1, 2, 3], [1, 2, 3, 4])) == [True, True, True]
    assert list(reliability.agreement([1, 5, 3], [1, 2, 3])) == [True, False]
    assert list(reliability.agreement([5], [1])) == [False]
    assert list(reliability.agreement([], [1])) == []


def test_accepted_counts_are_those_of_every_forward(measured):
    counts = data("accepted_counts", small(), measured)
    assert set(counts["tau"]) == {0.5}  # at 1 all counts are one
    forwards = dict(zip(counts["accepted"], counts["forwards"], strict=True))
    assert forwards == {1: 1, 2: 5, 3: 2, 4: 2}
    assert counts["share"].sum() == pytest.approx(1)


def test_spans_are_of_the_first_document_whose_text_adds_up(tmp_path):
    long = " so they have 7 and 4 to find how"
    found = [
        answer(3, long, [4, 4, 2], [0.9] * 10),
        answer(0, " so 1 8 1 8 1 8 1 8", [9], [0.9] * 9),  # not the tokens counted
        answer(1, " 18", [2], [0.9] * 2),  # too short to show anything
        answer(2, long, [9], [0.9] * 9, truncated=True, finish="budget"),
    ]
    shown = data("spans", small(), write(tmp_path, {0.5: found}))
    assert set(shown["doc_id"]) == {3}
    assert list(shown["text"]) == [" so they have 7", " and 4 to find", " how"]
    assert list(shown["accepted"]) == [4, 4, 2]
    assert set(shown["benchmark"]) == {"toy_gsm8k"}  # the other was not measured


def test_texts_are_laid_out_as_a_paragraph_and_no_sign_is_lost():
    pieces = [(" def g (", 3), (" x ) :\n", 4), ("  return x", 2), ("", 1)]
    lines = spans.lay_out(pieces, width=12)
    assert lines == [[(0, " def g (", 3), (8, " x", 4)], [(0, " ) :⏎", 4)], [(0, "  return x", 2)]]
    long = spans.lay_out([(" word" * 30, 2)], width=20, most=2)
    assert [len(line) for line in long] == [1, 1]
    assert long[-1][-1][1].endswith(" …")
    assert all(column + len(text) <= 20 for line in long for column, text, _ in line)


@pytest.mark.parametrize("text", [" it costs $5 + $10 .", " $5 # $6", " is $40%. So $", " a$^$ b"])
def test_dollars_in_an_answer_are_dollars_and_no_formula(text, monkeypatch, tmp_path):
    row = {"scale": "toy-s", "variant": "mars_b4", "benchmark": "toy_gsm8k", "tau": 0.5}
    row |= {"task": "of $1 or $2_", "doc_id": 0, "score": 1.0, "tokens": 4, "forwards": 1}
    shown = pd.DataFrame([{**row, "span": 0, "text": text, "accepted": 4}])
    monkeypatch.setattr(spans, "data", lambda study, results: shown)
    drawn = spans.figure(small(), tmp_path).findobj(Text)
    assert not [t for t in drawn if "$" in t.get_text() and t.get_parse_math()]
    assert text in {t.get_text() for t in drawn}
    assert all(path.exists() for path in draw("spans", small(), tmp_path, tmp_path / "spans"))


def test_scores_over_thresholds_are_those_measured(study, results):
    points = data("score_tau", study, results)
    assert set(points["benchmark"]) == set(study.evaluation.panels)
    frontier = data("frontier", study, results)
    keys = ["scale", "benchmark", "variant", "tau"]
    points, frontier = points.set_index(keys), frontier.set_index(keys)
    shared = frontier[frontier["curve"] != "paper"]
    assert len(shared) == len(points)
    assert (points["score"] == shared["score"].reindex(points.index)).all()
    assert score_tau.benchmarks(small()) == []


@pytest.mark.parametrize("name", ["accepted_counts", "reliability", "score_tau", "spans"])
def test_a_study_without_enough_thresholds_has_no_such_figure(name, measured, tmp_path):
    assert applies(synthetic.embedded(), name)
    assert applies(small(), name) == (name != "score_tau")
    one = small(thresholds=[1.0])
    assert not applies(one, name)
    assert all(path.exists() for path in draw(name, one, measured, tmp_path / name))


def test_counts_that_were_not_measured_are_no_bar(measured):
    made = accepted_counts.figure(small(thresholds=[1.0, 0.9, 0.5]), measured)
    assert len(made.axes) == 1
    assert {0.5} == set(data("accepted_counts", small(thresholds=[1.0, 0.9, 0.5]), measured)["tau"])
