"""A variant against its baselines: the verdict's rules, the numbers, and the page."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from mars.analysis.compare import frontier
from mars.analysis.compare.numbers import compare, pairs, verdict
from mars.analysis.compare.page import difference_table, verdict_table, write_comparison
from mars.analysis.figures import style
from mars.analysis.statistics import Estimate
from mars.analysis.summary import summarise
from mars.config import ConfigError, Study, Variant, parse_study

from . import synthetic
from .test_report import Page

BASELINES = ["ar_sft", "mars_b4"]


def small(**variants: object) -> Study:
    """The embedded study at one scale, with AR SFT, MARS and some more variants."""
    raw = synthetic.embedded().model_dump(mode="json")
    raw |= {"throughput": None, "training_cost": None, "scales": {"toy-s": raw["scales"]["toy-s"]}}
    raw["evaluation"] |= {"acceptance": None, "jacobi": None}
    kept = {name: raw["variants"][name] for name in ("base", *BASELINES)}
    raw["variants"] = kept | variants
    return parse_study(raw)


def trained(**settings: object) -> dict:
    return Variant(objective="mars", parent="ar_sft", stages=[2], **settings).model_dump(
        mode="json"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Variants whose truth is known: ``worse`` is made 6 points worse, ``alike`` is not."""
    study = small(
        worse=trained(block_size=16, ar_weight=0.0),
        alike=trained(block_size=4, ar_weight=0.5),
        few=trained(block_size=4, thresholds=[1.0, 0.9]),
    )
    folder = tmp_path_factory.mktemp("results") / "embedded"
    return study, synthetic.make_results(folder, study, documents=150)


def estimate(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, np.linspace(low, high, 1001))


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.5, 3.0, "better"),
        (-1.0, 3.0, "not worse"),
        (-1.5, -0.2, "not worse"),  # surely a loss, and as surely below the margin
        (-5.0, -0.5, "worse"),
        (-5.0, 1.0, "inconclusive"),
    ],
)
def test_a_verdict_is_what_the_interval_says(low, high, said):
    wide = estimate(low - 0.03 * (high - low), high + 0.03 * (high - low))
    assert wide.interval == pytest.approx((low, high), abs=0.02 * (high - low))
    assert verdict(wide, margin=2.0) == said


def test_without_an_interval_there_is_no_verdict():
    assert verdict(None, 2.0) == "missing"
    assert verdict(Estimate(1.0), 2.0) == "missing"


def test_a_wider_margin_forgives_more():
    loss = estimate(-5.0, 1.0)
    assert verdict(loss, 2.0) == "inconclusive"
    assert verdict(loss, 6.0) == "not worse"


def test_what_is_worse_is_told_from_what_is_alike(made):
    study, results = made
    said = {
        (name, one.baseline): one.verdict
        for name in ("worse", "alike")
        for one in compare(study, results, name, BASELINES, margin=4.0)
        if one.tau == one.tau_theirs == 1.0
    }
    assert said["worse", "mars_b4"] == "worse"
    assert said["alike", "mars_b4"] == "not worse"


def test_each_threshold_meets_the_same_one_or_the_only_one(made):
    summary = summarise(*made)
    assert pairs(summary, "alike", "mars_b4") == [(1.0, 1.0), (0.95, 0.95)]
    assert pairs(summary, "alike", "ar_sft") == [(1.0, 1.0), (0.95, 1.0)]
    assert pairs(summary, "ar_sft", "mars_b4") == [(1.0, 1.0), (1.0, 0.95)]
    assert pairs(summary, "few", "mars_b4") == [(1.0, 1.0)]
    assert pairs(summary, "few", "ar_sft") == [(1.0, 1.0), (0.9, 1.0)]


def test_differences_are_those_of_the_summary_and_of_the_mean(made):
    study, results = made
    one = compare(study, results, "alike", ["mars_b4"], 2.0)[1]
    assert (one.tau, one.tau_theirs) == (0.95, 0.95)
    assert set(one.benchmarks) == set(study.evaluation.benchmarks)
    for paired in one.benchmarks.values():
        assert paired.difference.value == pytest.approx(paired.ours.value - paired.theirs.value)
    values = [paired.difference.value for paired in one.benchmarks.values()]
    assert one.mean.difference.value == pytest.approx(np.mean(values))


def test_the_pace_is_compared_on_the_same_documents(made):
    """Against itself the difference is 0 in every draw, not the sum of two spreads."""
    study, results = made
    pace = compare(study, results, "alike", ["mars_b4"], 2.0)[1].mean
    assert pace.faster.value == pytest.approx(pace.pace.value - pace.pace_theirs.value)
    own = compare(study, results, "alike", ["alike"], 2.0)[1].mean
    assert not own.faster.draws.any()
    assert not own.difference.draws.any()


def test_p_values_are_mcnemars_corrected_over_the_page(made):
    study, results = made
    found = compare(study, results, "worse", BASELINES, 2.0)
    summary = summarise(study, results)
    plain, corrected = [], []
    for one in found:
        for name, paired in one.benchmarks.items():
            ours = "worse", summary.decoding("worse", name, one.tau)
            theirs = one.baseline, summary.decoding(one.baseline, name, one.tau_theirs)
            p, test = summary.p_value("toy-s", name, ours, theirs)
            assert test == "McNemar, exact"
            plain.append(p)
            corrected.append(paired.p)
    assert len(plain) == 4 * 6
    assert min(corrected) == pytest.approx(24 * min(plain))
    assert all(c >= p for c, p in zip(corrected, plain, strict=True))


def test_the_frontier_has_the_points_that_were_measured(made):
    study, results = made
    points = frontier.data(study, results, "few", BASELINES)
    mean = points[points["panel"] == "mean"]
    assert sorted(mean[mean["variant"] == "few"]["tau"]) == [0.9, 1.0]
    assert list(mean[mean["variant"] == "ar_sft"]["forwards"]) == [pytest.approx(1.0)]
    swept = points[(points["panel"] == "toy_gsm8k") & (points["variant"] == "mars_b4")]
    assert sorted(swept["tau"]) == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]
    assert (swept["low"] <= swept["score"]).all()


def test_the_frontier_is_as_wide_as_a_page_and_names_its_ends(made):
    study, results = made
    with matplotlib.rc_context(fname=style.STYLE):
        points = frontier.data(study, results, "mars_b4", ["ar_sft"])
        drawn = frontier.figure(study, points, "mars_b4", ["ar_sft"])
        drawn.draw_without_rendering()
    assert drawn.get_figwidth() == style.WIDE
    for ax, panel in zip(drawn.axes, ["mean", *study.evaluation.panels], strict=True):
        taus = points[(points["panel"] == panel) & (points["variant"] == "mars_b4")]["tau"]
        assert {f"τ {taus.max():g}", f"τ {taus.min():g}"} <= {text.get_text() for text in ax.texts}
        boxes = [Text.get_window_extent(text) for text in ax.texts]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        assert all(text.get_fontsize() >= style.SMALL for text in ax.texts)


def test_the_page_says_it_all_and_fetches_nothing(made, tmp_path):
    study, results = made
    out = write_comparison(study, results, "worse", BASELINES, 2.0, tmp_path / "compare-worse.html")
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert "worse : worse against mars_b4 (toy-s, τ = 1)" in page.text
    assert "ar_weight: 0.0" in page.text
    [image] = page.all("img")
    assert image["src"].startswith("data:image/png;base64,")
    assert image["alt"]
    assert 800 < int(image["width"]) < 900  # as the report shows a figure of a page's width
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            assert not (attributes.get(name) or "").startswith("http"), tag
    found = compare(study, results, "worse", BASELINES, 2.0)
    told = verdict_table(study, found, 2.0).csv() + difference_table(study, found).csv()
    assert f"{found[0].mean.difference.value:.6g}" in told


def test_what_is_missing_shows_as_missing(made, tmp_path):
    study, results = made
    more = parse_study(
        study.model_dump(mode="json")
        | {"variants": study.model_dump(mode="json")["variants"] | {"new": trained(block_size=2)}}
    )
    [one, *_] = compare(more, results, "new", ["mars_b4"], 2.0)
    assert one.verdict == "missing"
    assert one.mean.ours is None
    assert one.mean.theirs is not None
    page = Page(
        write_comparison(more, results, "new", ["mars_b4"], 2.0, tmp_path / "x.html").read_text(
            encoding="utf-8"
        )
    )
    assert "evaluation of seed 0, toy-s, new" in page.text
    assert "results are missing" in page.text
    assert "--forcerun" not in page.text


def test_the_gaps_are_those_of_the_compared_runs_with_one_command(made, tmp_path):
    study, whole = made
    results = Path(shutil.copytree(whole, tmp_path / "embedded"))
    (results / "seed0/toy-s/few/evaluation.csv").unlink()  # of no run that is compared
    (results / "seed0/toy-s/ar_sft/evaluation.csv").unlink()
    path = results / "seed0/toy-s/mars_b4/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["benchmark"] != "toy_gpqa"].to_csv(path, index=False)
    out = write_comparison(study, results, "alike", BASELINES, 2.0, tmp_path / "x.html")
    page = Page(out.read_text(encoding="utf-8"))
    assert "evaluation of seed 0, toy-s, ar_sft" in page.text
    assert "evaluation of seed 0, toy-s, mars_b4 on toy_gpqa" in page.text
    assert "toy-s, few" not in page.text
    config = f"--configfile {results.as_posix()}/config.yaml"
    assert (
        f"snakemake --cores 8 compare --forcerun {path.as_posix()} {config} --config variant=FILE"
        in page.text
    )


def test_what_the_study_has_not_is_named(made, tmp_path):
    with pytest.raises(ConfigError, match="--baselines: unknown 'ar_sfd'; did you mean 'ar_sft'"):
        write_comparison(*made, "worse", ["ar_sfd"], 2.0, tmp_path / "x.html")
