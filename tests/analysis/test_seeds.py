"""A study of two seeds, of which one lacks a result: no number is made of the other alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mars.analysis.arrivals import served
from mars.analysis.claims import findings
from mars.analysis.claims.verdict import UNMEASURED
from mars.analysis.figures import accepted_counts, frontier, loss_curves, signal_fraction
from mars.analysis.missing import missing
from mars.analysis.tables import build
from mars.config import Study, load_study, parse_study

from . import synthetic

RUN = "seed1/toy-s/mars_b4"


@pytest.fixture(scope="module")
def two() -> Study:
    raw = load_study(synthetic.ROOT / "tests/mini.yaml").model_dump(mode="json")
    raw["throughput"] |= {"batch_sizes": [4, 16], "cache_blocks": [32]}
    return parse_study(raw | {"seeds": [0, 1]})


@pytest.fixture(scope="module")
def whole(two: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_results(tmp_path_factory.mktemp("two") / "mini", two, documents=16)


@pytest.fixture
def lacking(whole: Path, tmp_path: Path) -> Path:
    """A copy, to take results of the second seed away from."""
    return Path(shutil.copytree(whole, tmp_path / "mini"))


def row(table, model: str, section: int = 0) -> dict:
    return next(r for r in table.sections[section].rows if r["model"] == model)


def test_a_score_of_one_seed_alone_is_missing_and_so_is_what_is_made_of_it(two, whole, lacking):
    (lacking / RUN / "evaluation.csv").unlink()
    cells = [*two.evaluation.benchmarks, "Avg"]
    before, after = (build("table2", two, folder) for folder in (whole, lacking))
    for section in (0, 1):  # scores, differences
        assert all(row(before, "MARS", section)[c] is not None for c in cells)
        assert all(row(after, "MARS", section)[c] is None for c in cells)
    assert row(after, "AR SFT") == row(before, "AR SFT")
    forwards = row(build("table4", two, lacking), "MARS", 1)
    assert all(forwards[c] is None for c in cells)
    assert row(build("glance", two, lacking), "MARS")["one"] is None


def test_a_benchmark_of_one_seed_alone_leaves_only_itself_and_the_mean_empty(two, lacking):
    path = lacking / RUN / "evaluation.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if ",toy_gpqa," not in line), encoding="utf-8")
    mine = row(build("table2", two, lacking), "MARS")
    assert mine["toy_gpqa"] is mine["Avg"] is None
    assert set(mine["toy_gsm8k"].per_seed) == {0, 1}


def test_claims_on_it_are_not_measured_and_name_the_seed(two, lacking):
    (lacking / RUN / "evaluation.csv").unlink()
    (lacking / "seed1/throughput.csv").unlink()
    (lacking / "seed1/training_cost.csv").unlink()
    found = {finding.claim.id: finding for finding in findings(two, lacking)}
    for claim, gap in (
        (1, "evaluation of seed 1, toy-s, mars_b4"),
        (8, "wall-clock grid of seed 1"),
        (10, "training cost of seed 1"),
    ):
        assert found[claim].verdict == UNMEASURED
        assert [g.what for g in found[claim].gaps] == [gap]
    [gap] = [g for g in missing(two, lacking) if g.source[0] == "evaluation"]
    path, config = (lacking / name for name in (f"{RUN}/evaluation.csv", "config.yaml"))
    assert gap.command == f"snakemake --cores 8 {path} --configfile {config}"


def test_figures_and_counts_leave_it_out(two, whole, lacking):
    for name in ("evaluation.csv", "training.csv", "training.json"):
        (lacking / RUN / name).unlink()
    lines = frontier.data(two, whole), frontier.data(two, lacking)
    curves = loss_curves.data(two, whole), loss_curves.data(two, lacking)
    fractions = signal_fraction.data(two, whole), signal_fraction.data(two, lacking)
    for before, after in (lines, curves, fractions):
        assert set(before["variant"]) - set(after["variant"]) == {"mars_b4"}
    assert len(accepted_counts.data(two, whole))
    assert accepted_counts.data(two, lacking).empty
    fraction = row(build("table3", two, lacking), "MARS")["fraction"]
    assert fraction is None or fraction != fraction
    assert row(build("training_overhead", two, lacking), "MARS").get("examples") is None
    (lacking / "seed1/toy-s/ar_sft/evaluation.csv").unlink()
    assert build("calibration", two, whole).sections[0].rows
    assert build("calibration", two, lacking).empty


def test_times_of_one_seed_alone_are_missing(two, whole, lacking):
    for name in ("throughput", "throughput.profile", "arrivals", "training_cost"):
        (lacking / f"seed1/{name}.csv").unlink()
    for name in ("table5", "roofline", "profile", "replay", "batching", "arrivals"):
        assert not build(name, two, whole).empty, name
        assert build(name, two, lacking).empty, name
    assert served(two, lacking) == []
    steps = (row(build("training_overhead", two, f), "MARS")["step"] for f in (whole, lacking))
    assert [step is None for step in steps] == [False, True]
