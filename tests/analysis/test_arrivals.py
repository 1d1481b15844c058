"""The arrival trace: its table and its figure, on four requests that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mars.analysis.arrivals import Served, served
from mars.analysis.figures import arrivals as drawing
from mars.analysis.results import ResultsError, load_arrivals
from mars.analysis.tables import build
from mars.config import parse_study


def of(found: list[Served], policy: str, phase: int | None) -> Served:
    return next(each for each in found if (each.policy, each.phase) == (policy, phase))


def test_numbers_of_a_phase_are_those_of_its_requests(fixed):
    found = served(*fixed)
    assert [(each.policy, each.phase) for each in found] == [
        (policy, phase) for policy in ("tau 1", "controller") for phase in (0, 1, None)
    ]
    quiet = of(found, "tau 1", 0)  # arrives 0, 2; starts 0, 4; ends 4, 10
    assert (quiet.requests, quiet.median_latency, quiet.wait) == (2, 6.0, 1.0)
    assert quiet.slow_latency == pytest.approx(4 + 0.95 * 4)
    assert (quiet.tokens_per_s, quiet.tokens_per_forward) == (5.0, 1.0)
    busy = of(found, "controller", 1)  # arrives 6, 7; starts 7, 9; ends 9, 14
    assert (busy.median_latency, busy.wait) == (5.0, 1.5)
    assert (busy.tokens_per_s, busy.tokens_per_forward) == (70 / 8, 70 / 28)
    whole = of(found, "controller", None)
    assert (whole.requests, whole.tokens_per_s, whole.score.value) == (4, 120 / 14, 50.0)
    right = of(found, "tau 1", 1).score  # both documents, which says little of others
    assert right.value == 100.0
    assert right.interval is not None
    assert right.interval[0] < 80
    assert right.interval[1] == 100.0


def test_the_table_says_who_when_and_at_what_load(fixed):
    rows = build("arrivals", *fixed).sections[0].rows
    assert [row["phase"] for row in rows[:3]] == ["1, load 0.5", "2, load 2", "all"]
    assert rows[0]["model"] == "τ = 1"
    assert rows[3]["model"] == "controller, τ from 0.95 to 0.6"
    text = build("arrivals", *fixed).markdown()
    assert "| τ = 1 | 1, load 0.5 | 2 | 6.00 | 7.80 | 1.00 | 5.0 | 1.00 | 50.0 [" in text


def trace(rows: int, documents: int) -> pd.DataFrame:
    """Requests of one policy and phase; every second document is answered right, always."""
    i = np.arange(rows)
    return pd.DataFrame(
        {
            "policy": "tau 1",
            "request": i,
            "doc_id": i % documents,
            "phase": 0,
            "arrival": i * 1.0,
            "start": i * 1.0,
            "first_token": i + 0.1,
            "finish": i + 1.0,
            "tokens": 10,
            "forwards": 10,
            "tau_start": 1.0,
            "tau_end": 1.0,
            "queue": 0,
            "score": (i % documents) % 2.0,
        }
    )


def test_a_document_asked_again_adds_nothing_to_certainty(fixed, tmp_path):
    study, _ = fixed
    widths = []
    for rows, documents in ((400, 20), (400, 400)):
        (tmp_path / "seed0").mkdir(exist_ok=True)
        trace(rows, documents).to_csv(tmp_path / "seed0/arrivals.csv", index=False)
        score = served(study, tmp_path)[0].score
        assert score.value == 50.0
        assert score.interval is not None
        widths.append(score.interval[1] - score.interval[0])
    # 1.96 · 2 · 50 / √documents
    assert widths[0] == pytest.approx(196 / 20**0.5, rel=0.1)
    assert widths[1] == pytest.approx(196 / 400**0.5, rel=0.1)


def test_seeds_are_averaged_and_their_spread_kept(fixed, tmp_path):
    study = parse_study(fixed[0].model_dump(mode="json") | {"seeds": [0, 1]})
    for seed, slower in ((0, 1.0), (1, 3.0)):
        (tmp_path / f"seed{seed}").mkdir()
        made = trace(10, 10).assign(score=float(seed))
        made = made.assign(finish=made["start"] + slower)
        made.to_csv(tmp_path / f"seed{seed}/arrivals.csv", index=False)
    found = served(study, tmp_path)[0]
    assert (found.requests, found.median_latency) == (10, 2.0)
    assert found.tokens_per_s == pytest.approx((100 / 10 + 100 / 12) / 2)
    assert found.score.value == 50.0
    assert found.score.seed_sd == pytest.approx(100 / 2**0.5)
    assert "seeds ±" in build("arrivals", study, tmp_path).markdown()


def test_seeds_ask_the_same_documents_and_are_drawn_with_them(fixed, tmp_path):
    """Two seeds that answer alike say no more of other documents than one does."""
    study = parse_study(fixed[0].model_dump(mode="json") | {"seeds": [0, 1]})
    for seed in (0, 1):
        (tmp_path / f"seed{seed}").mkdir()
        trace(400, 100).to_csv(tmp_path / f"seed{seed}/arrivals.csv", index=False)
    (one,) = (each for each in served(fixed[0], tmp_path) if each.phase is None)
    (both,) = (each for each in served(study, tmp_path) if each.phase is None)
    assert both.score.value == one.score.value == 50.0
    assert both.score.interval == one.score.interval


def test_throughput_in_a_window_is_the_tokens_made_in_it(fixed):
    runs = drawing.data(*fixed)
    mine = runs[runs["policy"] == "tau 1"]  # 5 tokens/s from 0 on, and 0 before and after
    rate = drawing.throughput(mine, np.array([-2.0, 0.0, 7.0, 12.0, 24.0, 40.0]), 2.0)
    assert rate == pytest.approx([0.0, 2.5, 5.0, 5.0, 2.5, 0.0])


def test_who_waits_is_who_arrived_and_did_not_start(fixed):
    runs = drawing.data(*fixed)
    times, waiting = drawing.waiting_over_time(runs[runs["policy"] == "tau 1"])
    assert list(times) == [0, 2, 4, 6, 7, 10, 14]
    assert list(waiting) == [0, 1, 0, 1, 2, 1, 0]


def test_the_figure_has_each_policys_latency_and_running_median(study, results):
    runs = drawing.data(study, results)
    assert list(runs["policy"].unique()) == sorted(runs["policy"].unique())
    mine = runs[runs["policy"] == "controller"].reset_index(drop=True)
    assert list(mine["arrival"]) == sorted(mine["arrival"])
    # 200 requests: the median is of 20 around each
    assert mine["median"][40] == mine["latency"][30:50].median()
    made = drawing.figure(study, results)
    labels = [text.get_text() for text in made.legends[0].get_texts()]
    assert labels == ["τ = 1", "τ = 0.95", "τ = 0.7", "controller, τ from 0.95 to 0.6"]


def test_a_trace_without_its_columns_is_named(fixed, tmp_path):
    (tmp_path / "seed0").mkdir()
    trace(2, 2).drop(columns="tau_end").to_csv(tmp_path / "seed0/arrivals.csv", index=False)
    with pytest.raises(ResultsError, match=r"arrivals.csv: no column 'tau_end'"):
        load_arrivals(fixed[0], tmp_path)
