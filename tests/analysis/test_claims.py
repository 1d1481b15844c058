"""Verdicts: on the paper's own numbers, where results are missing, how often they are wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mars.analysis.claims import claims, findings, judge
from mars.analysis.claims.checks import CHECKS
from mars.analysis.claims.measured import Measured
from mars.analysis.claims.printed import Printed
from mars.analysis.claims.verdict import (
    OPEN,
    REFUTED,
    REPRODUCED,
    UNMEASURED,
    Bound,
    between,
    exact,
    of_claim,
    of_number,
    repeated_ratio,
)
from mars.analysis.results import THROUGHPUT_COLUMNS
from mars.analysis.speed import Grid
from mars.analysis.statistics import Estimate
from mars.analysis.summary import summarise
from mars.analysis.tables import build
from mars.config import Study, parse_study

from . import synthetic

# --------------------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: str(claim.id))
def test_the_papers_own_numbers_taken_as_exact_reproduce_every_claim(claim):
    found = judge(claim, Printed())
    assert found.verdict == REPRODUCED
    assert {part.verdict for part in found.parts if part.condition.bound} == {REPRODUCED}


def test_the_numbers_behind_the_verdicts_are_those_of_the_tables():
    """Worked out by hand from the CSV files."""
    made = {c.id: judge(c, Printed()).parts for c in claims()}
    numbers = {i: [round(p.condition.number.value, 3) for p in parts] for i, parts in made.items()}
    assert numbers[1] == [1.7, 1.5]
    assert numbers[2] == [-4.0]
    assert numbers[3] == [-18.8, -9.9]
    assert numbers[4] == [-3.1, -0.35]
    assert numbers[5] == [1.46, 1.68, 0.3, 0.2]
    assert numbers[6] == [  # GSM8K and HumanEval: 0.5B at B = 4, 8, 16, and 7B at B = 4
        *(-1.7, -0.6, -1.1, -0.6, -2.6, 0.0),
        *(-2.2, -1.2),
    ]
    assert numbers[7] == [
        *(-5.8, -4.9, -6.3, -4.1, -5.2),
        *(-7.0, -5.5, -5.0, -4.5, -5.0),
        *(-4.3, -5.2, -5.4, -2.8, -5.4),
        *(-4.9, -5.0, -6.3, -3.0, -4.0),
    ]
    assert numbers[8][:3] == [0.90, 0.49, 0.23]
    assert numbers[8][3] == pytest.approx((0.23 / 0.90) ** 0.5, abs=1e-3)  # two doublings
    assert numbers[8][4] == 1.71
    assert numbers[8][5] == pytest.approx((1.28 / 1.71) ** 0.5, abs=1e-3)
    assert numbers[9] == [1.07]
    assert numbers[10] == [2.1, 2.1]


def test_claims_are_those_of_the_paper_and_complete():
    assert [claim.id for claim in claims()] == list(range(1, 11))
    for claim in claims():
        assert claim.sentence.endswith(".")
        assert claim.where
        assert claim.needs
        for condition in claim.conditions:
            assert condition["check"] in CHECKS
            if "bound" in condition:
                Bound.parse(condition["bound"])


# ----------------------------------------------------------------------------------- the verdict


def spread(value: float, sd: float) -> Estimate:
    return Estimate(value, value + sd * stats.norm.ppf((np.arange(2000) + 0.5) / 2000))


@pytest.mark.parametrize(
    ("number", "bound", "verdict"),
    [
        (spread(0.0, 0.9), "> -2", REPRODUCED),  # [-1.8, 1.8]
        (spread(0.0, 1.1), "> -2", OPEN),  # [-2.2, 2.2]
        (spread(-5.0, 1.1), "> -2", REFUTED),
        (spread(-5.0, 2.0), "> -2", OPEN),
        (exact(1.4), ">= 1.4", REPRODUCED),
        (exact(1.4), "> 1.4", REFUTED),
        (between(2.0, 2.2), "<= 2.1", OPEN),
        (Estimate(5.0), "> -2", OPEN),  # no interval, no verdict
        (None, "> -2", UNMEASURED),
    ],
)
def test_the_whole_interval_must_be_on_one_side(number, bound, verdict):
    assert of_number(number, Bound.parse(bound)) == verdict


def test_refuting_is_harder_among_many_conditions_and_holding_is_not():
    number = spread(-4.5, 1.1)  # [-6.7, -2.3] at 95 %
    bound = Bound.parse("> -2")
    assert of_number(number, bound) == REFUTED
    assert of_number(number, bound, among=16) == OPEN
    assert of_number(spread(0.5, 1.1), bound, among=16) == REPRODUCED


def test_a_claim_needs_all_its_conditions():
    assert of_claim([REPRODUCED, REPRODUCED]) == REPRODUCED
    assert of_claim([REPRODUCED, OPEN]) == OPEN
    assert of_claim([REPRODUCED, OPEN, REFUTED]) == REFUTED
    assert of_claim([REPRODUCED, UNMEASURED]) == UNMEASURED
    assert of_claim([]) == UNMEASURED


def test_a_ratio_over_repeats_has_students_interval():
    logs = np.log([1.30, 1.38, 1.33])
    made = repeated_ratio(list(logs))
    assert made is not None
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert made.value == pytest.approx(np.exp(logs.mean()))
    assert made.interval == pytest.approx((np.exp(low), np.exp(high)), rel=1e-3)
    one = repeated_ratio([0.3])
    assert one is not None
    assert one.interval is None
    assert repeated_ratio([]) is None


def timed(ar: dict[tuple[int, int], float]) -> Measured:
    """A study whose MARS takes a second, and AR what is given by (seed, repeat), at batch 4 and 8.

    At batch 8 AR takes half as long. A step of MARS takes twice that time, one of AR SFT a second.
    """
    study = synthetic.embedded()
    same = {"part": "grid", "acceptance": "model", "cache": "dynamic", "scheduling": "static"}
    runs = [
        {**dict.fromkeys(THROUGHPUT_COLUMNS, np.nan), **same, "seed": seed, "repeat": repeat} | made
        for (seed, repeat), seconds in ar.items()
        for size, share in ((4, 1.0), (8, 0.5))
        for made in (
            {"method": "generate", "draft": "", "batch_size": size, "seconds": seconds * share},
            {"method": "mars", "cache": "none", "draft": "B", "batch_size": size, "seconds": 1.0},
        )
    ]
    steps = [
        {"method": method, "variant": variant, "seed": seed, "repeat": repeat, "steps": 1} | made
        for (seed, repeat), seconds in ar.items()
        for method, variant, made in (
            ("ar_sft", "ar_sft", {"seconds": 1.0}),
            ("mars", "mars_b4", {"seconds": 2 * seconds}),
        )
    ]
    nothing = summarise(study, Path("nowhere"))
    return Measured(nothing, Grid(pd.DataFrame(runs)), pd.DataFrame(steps))


def test_times_of_several_seeds_have_students_interval_over_the_seeds():
    """The repeats of a seed are not so many more measurements: their mean is one."""
    alike = {(seed, i): s for seed, s in enumerate((1.2, 1.5, 1.35)) for i in range(5)}
    alike[0, 1], alike[0, 2] = 1.2 * 1.1, 1.2 / 1.1  # the mean logarithm stays
    logs = np.log([1.2, 1.5, 1.35])
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    evidence = timed(alike)
    speedup = evidence.speedup("none", None, 4)
    assert speedup.value == pytest.approx(np.exp(logs.mean()))
    assert speedup.interval == pytest.approx((np.exp(low), np.exp(high)), rel=3e-3)
    trend = evidence.trend("none", None, [4, 8])
    assert trend.interval == pytest.approx((0.5, 0.5))  # in every seed alike
    _, step = evidence.training_time("ours")
    assert step.interval == pytest.approx((2 * np.exp(low), 2 * np.exp(high)), rel=3e-3)


def test_times_of_one_seed_have_students_interval_over_its_repeats():
    logs = np.log([1.2, 1.5, 1.35])
    evidence = timed({(0, i): float(np.exp(x)) for i, x in enumerate(logs)})
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    interval = evidence.speedup("none", None, 4).interval
    assert interval == pytest.approx((np.exp(low), np.exp(high)), rel=3e-3)


def test_a_bound_is_read_and_shown():
    assert str(Bound.parse("> -2")) == "> −2"
    assert str(Bound.parse(">= 1.4")) == "≥ 1.4"
    with pytest.raises(ValueError, match="a bound is one of"):
        Bound.parse("about 2")


# ------------------------------------------------------------------------------------- a study


def test_a_finished_study_has_a_verdict_on_every_claim_and_the_papers_value_beside(study, results):
    found = findings(study, results)
    assert [f.claim.id for f in found] == list(range(1, 11))
    assert UNMEASURED not in {f.verdict for f in found}
    assert not any(f.gaps for f in found)
    first = found[0]
    assert [p.condition.what for p in first.parts] == [
        "toy-s: MARS B = 4 − AR SFT, mean",
        "toy-m: MARS B = 4 − AR SFT, mean",
    ]
    assert [p.paper.value for p in first.parts] == [1.7, 1.5]
    summary = summarise(study, results)
    at = {b: (summary.decoding("mars_b4", b), summary.decoding("ar_sft", b)) for b in _names(study)}
    changes = [
        summary.difference("toy-s", b, ("mars_b4", mine), ("ar_sft", other)).value
        for b, (mine, other) in at.items()
    ]
    assert first.parts[0].condition.number.value == pytest.approx(np.mean(changes))
    # made up: 2.5 times the step of a packed AR SFT, and that of a padded one 1.2 times
    assert found[9].verdict == REPRODUCED
    assert [p.condition.number.value for p in found[9].parts] == pytest.approx(
        [2.5 / 1.2, 2.5 / 1.2, 1.5]
    )
    assert "laid out alike" in found[9].parts[0].condition.what


def _names(study: Study) -> list[str]:
    return list(study.evaluation.benchmarks)


def test_without_a_padded_ar_training_is_compared_with_the_packed_one_and_says_so(study, partial):
    path = partial / "seed0" / "training_cost.csv"
    frame = pd.read_csv(path)
    frame[frame["method"] != "ar_released"].to_csv(path, index=False)
    found = findings(study, partial)[9]
    assert found.parts[0].condition.number.value == pytest.approx(2.5)
    assert "packed, not padded" in found.parts[0].condition.what
    assert found.verdict == REFUTED  # beyond 2.4


def test_what_is_missing_is_not_measured_and_comes_with_its_command(study, partial):
    (partial / "seed0/toy-s/mars_b4/evaluation.csv").unlink()
    (partial / "seed0/throughput.csv").unlink()
    found = {f.claim.id: f for f in findings(study, partial)}
    assert found[1].verdict == UNMEASURED
    assert found[1].parts[0].verdict == UNMEASURED
    assert found[1].parts[0].condition.number is None
    assert [gap.what for gap in found[1].gaps] == ["evaluation of seed 0, toy-s, mars_b4"]
    assert found[8].verdict == UNMEASURED
    assert [gap.what for gap in found[8].gaps] == ["wall-clock grid of seed 0"]
    assert found[10].verdict == REPRODUCED  # nothing of it is missing
    table = build("claims", study, partial)
    rows = {row["id"]: row for row in table.sections[0].rows}
    assert rows[1]["ours"] is None
    line = next(x for x in table.markdown().splitlines() if x.startswith("| 1 |"))
    assert "not measured" in line
    assert "| – | 1.7 |" in line
    assert any("Claim 8 lacks wall-clock grid of seed 0: snakemake" in n for n in table.notes)


def test_a_study_without_a_part_says_what_it_would_need(tmp_path):
    study = synthetic.reduced(("base", "ar_sft", "mars_b4"))
    found = {f.claim.id: f for f in findings(study, tmp_path / "none")}
    assert {f.verdict for f in found.values()} == {UNMEASURED}
    assert found[2].parts == []
    assert found[1].gaps[0].what == "evaluation of seed 0, toy-s, ar_sft"
    rows = {row["id"]: row for row in build("claims", study, tmp_path / "none").sections[0].rows}
    assert rows[8]["what"].startswith("Not part of this study. Needs a throughput section")
    assert all(row["ours"] is None for row in rows.values() if "ours" in row)


def test_half_of_a_claim_is_not_the_claim(study, partial):
    """Its reasoning benchmarks are two, and of its caches the block cache is one."""
    raw = study.model_dump(mode="json")
    del raw["evaluation"]["benchmarks"]["toy_mmlu_pro"]
    raw["throughput"]["cache_blocks"] = [16]
    path = partial / "seed0/throughput.csv"
    runs = pd.read_csv(path)
    batch = runs["batch_size"]
    runs.loc[runs["cache"] == "none", "seconds"] *= 2 * batch  # slower than AR, the more so
    runs.to_csv(path, index=False)
    half = parse_study(raw)
    found = {f.claim.id: f for f in findings(half, partial)}
    for claim in (3, 8):
        assert {part.verdict for part in found[claim].parts} == {REPRODUCED}
        assert found[claim].verdict == UNMEASURED
    rows = {row["id"]: row for row in build("claims", half, partial).sections[0].rows}
    assert rows[8]["what"].startswith("Not all of it in this study. Needs a throughput section")


def test_half_of_a_claim_can_refute_it(study, partial):
    raw = study.model_dump(mode="json")
    del raw["evaluation"]["benchmarks"]["toy_mmlu_pro"]
    half = parse_study(raw)
    runs = partial / "seed0/toy-s"
    shutil.rmtree(runs / "block_diffusion_b4/evaluation/toy_bbh")
    ar, ours = (pd.read_csv(runs / v / "evaluation.csv") for v in ("ar_sft", "block_diffusion_b4"))
    same = ar[(ar["benchmark"] == "toy_bbh") & (ar["decoder"] == "ar")].iloc[0]
    at = ours["benchmark"] == "toy_bbh"
    ours.loc[at, ["score", "records"]] = [same["score"], same["records"]]  # nothing is lost
    ours.to_csv(runs / "block_diffusion_b4/evaluation.csv", index=False)
    assert {f.claim.id: f.verdict for f in findings(half, partial)}[3] == REFUTED


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_a_ratio_at_the_edge_is_seldom_called_beyond_it(repeats):
    """What claims 8 and 10 are judged by; the noise of clocks is taken as log-normal."""
    rng, trials = np.random.default_rng(repeats), 400
    bound = Bound.parse("< 1")
    made = [
        of_number(repeated_ratio(list(rng.normal(0, 0.03, repeats))), bound) for _ in range(trials)
    ]
    allowed = stats.binom.ppf(0.99, trials, 0.05)
    assert 0 < made.count(REPRODUCED) <= allowed
    assert 0 < made.count(REFUTED) <= allowed
