"""One model against another: each number against the records themselves, and what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from mars.analysis import load, tidy
from mars.analysis.differences import COLUMNS, compare
from mars.analysis.summary import BOOTSTRAP, MCNEMAR, summarise
from mars.config import Study, dump_study

from . import synthetic


@pytest.fixture(scope="module")
def study() -> Study:
    return synthetic.reduced(("base", "ar_sft", "mars_b4"), seeds=(0, 1))


@pytest.fixture(scope="module")
def both(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds."""
    return synthetic.make_results(tmp_path_factory.mktemp("seeds") / "reduced", study, 48)


@pytest.fixture
def one(study: Study, both: Path, tmp_path: Path) -> Path:
    """The same with its first seed only."""
    folder = Path(shutil.copytree(both, tmp_path / "one", ignore=lambda *_: ["seed1"]))
    single = Study.model_validate(study.model_dump() | {"seeds": [0]})
    (folder / "config.yaml").write_text(dump_study(single))
    return folder


def test_every_number_is_that_of_the_records(one):
    made = compare(one, "toy-s", ("mars_b4", 0.95), "ar_sft")
    assert list(made) == list(COLUMNS)
    frame = load(one)
    frame = frame[frame["scale"] == "toy-s"]
    first = frame[(frame["variant"] == "mars_b4") & (frame["tau"] == 0.95)]
    second = frame[frame["variant"] == "ar_sft"]
    keys = ["benchmark", "task", "doc_id"]
    pairs = first.merge(second, on=keys, suffixes=("", "_ar")).set_index("benchmark")
    for row in made.iloc[:-1].itertuples():
        mine = pairs.loc[row.benchmark]
        change = 100 * (mine["score"] - mine["score_ar"])
        # of a benchmark with sub-tasks the mean of theirs
        assert row.difference == pytest.approx(
            change.groupby(mine["task"], observed=True).mean().mean()
        )
        assert row.low < row.difference < row.high
        assert row.n == len(mine) == 48
        gained, lost = int((change > 0).sum()), int((change < 0).sum())
        known = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert row.p == pytest.approx(known)
        assert row.test == MCNEMAR
    average = made.iloc[-1]
    assert average["benchmark"] == "Avg"
    assert average["difference"] == pytest.approx(made["difference"].iloc[:-1].mean())
    assert average["n"] == 6 * 48
    assert average["test"] == BOOTSTRAP
    assert list(made["p_holm"]) == pytest.approx(multipletests(made["p"], method="holm")[1])
    assert (made["p_holm"] >= made["p"]).all()


def test_scores_between_0_and_1_are_compared_by_the_bootstrap(one):
    study, _ = tidy.locate(one)
    for path in one.rglob("mars_b4/evaluation/toy_gpqa/*.jsonl"):
        path.write_text(path.read_text().replace('"score": 1.0', '"score": 0.75'))
    for path in one.rglob("mars_b4/evaluation.csv"):
        frame = pd.read_csv(path)
        frame.loc[frame["benchmark"] == "toy_gpqa", "score"] *= 0.75
        frame.to_csv(path, index=False)
    made = compare((study, one), "toy-s", "mars_b4", "ar_sft").set_index("benchmark")
    assert made.loc["toy_gpqa", "test"] == BOOTSTRAP
    assert made.loc["toy_gsm8k", "test"] == MCNEMAR
    assert 0 < made.loc["toy_gpqa", "p"] <= 1


def test_with_several_seeds_intervals_allow_for_another_training(study, both, one):
    alone = compare(one, "toy-s", "mars_b4", "ar_sft").set_index("benchmark")
    made = compare(both, "toy-s", "mars_b4", "ar_sft").set_index("benchmark")
    assert set(made["test"]) == {BOOTSTRAP}
    summary = summarise(study, both)
    sides = [(v, summary.decoding(v, "toy_gsm8k")) for v in ("mars_b4", "ar_sft")]
    change = summary.difference("toy-s", "toy_gsm8k", *sides)
    assert change.per_seed[0] == pytest.approx(alone.loc["toy_gsm8k", "difference"])
    assert change.value == pytest.approx(np.mean(list(change.per_seed.values())))
    assert change.replicates.std() > change.draws.std()


def test_where_one_model_lacks_a_seed_there_is_no_difference(study, both, tmp_path):
    folder = Path(shutil.copytree(both, tmp_path / "reduced"))
    (folder / "seed1/toy-s/mars_b4/evaluation.csv").unlink()
    summary = summarise(study, folder)
    sides = [(v, summary.decoding(v, "toy_gsm8k")) for v in ("mars_b4", "ar_sft")]
    assert summary.difference("toy-s", "toy_gsm8k", *sides) is None
    assert summary.p_value("toy-s", "toy_gsm8k", *sides) is None
    assert summary.score("toy-s", "ar_sft", "toy_gsm8k", sides[1][1]) is not None


def test_what_is_missing_is_missing_in_every_column(one):
    path = one / "seed0/toy-s/mars_b4/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["benchmark"] != "toy_bbh"].to_csv(path, index=False)
    made = compare(one, "toy-s", "mars_b4", "ar_sft").set_index("benchmark")
    for name in ("toy_bbh", "Avg"):
        assert made.loc[name, ["difference", "low", "high", "p", "p_holm", "n"]].isna().all()
    known = made.drop(["toy_bbh", "Avg"])
    assert known.notna().all(axis=None)
    assert list(known["p_holm"]) == pytest.approx(multipletests(known["p"], method="holm")[1])


def test_an_unknown_variant_says_what_there_is(one):
    with pytest.raises(ValueError, match="unknown variant 'mars'; choose from base, ar_sft"):
        compare(one, "toy-s", "mars", "ar_sft")


def test_an_unknown_scale_or_threshold_says_what_there_is(one):
    with pytest.raises(ValueError, match="scale: unknown 'toy-x'; did you mean 'toy-s'"):
        compare(one, "toy-x", "mars_b4", "ar_sft")
    with pytest.raises(ValueError, match=r"mars_b4 is not read at τ = 0\.94; choose from 1, 0\.95"):
        compare(one, "toy-s", ("mars_b4", 0.94), "ar_sft")
    with pytest.raises(ValueError, match=r"ar_sft is not read at τ = 0\.95; choose from 1"):
        compare(one, "toy-s", ("mars_b4", 0.95), ("ar_sft", 0.95))
    raw = tidy.locate(one)[0].model_dump()
    raw["variants"]["mars_b4"]["scales"] = ["toy-m"]
    with pytest.raises(ValueError, match="mars_b4 is not made at toy-s; choose from toy-m"):
        compare((Study.model_validate(raw), one), "toy-s", "mars_b4", "ar_sft")
