"""Wall-clock comparisons on runs small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mars.analysis import durations
from mars.analysis.figures import caption
from mars.analysis.render import Column, Section, Table
from mars.analysis.results import THROUGHPUT_COLUMNS, ResultsError, load_throughput
from mars.analysis.speed import LABELS, Grid, Setting, load_grid, threshold
from mars.analysis.statistics import Repeated
from mars.analysis.tables import build
from mars.config import Study, parse_study

SQRT2 = 2**0.5


def run(method: str, seconds: float, repeat: int = 0, **more: Any) -> dict[str, Any]:
    """A row of throughput.csv: 100 tokens, batch 4, acceptance of the model at τ = 0.95."""
    drafts = method in ("mars", "released")
    row = {
        **dict.fromkeys(THROUGHPUT_COLUMNS, float("nan")),
        "seed": 0,
        "part": "grid",
        "acceptance": "model",
        "batch_size": 4,
        "method": method,
        "cache": {"generate": "dynamic", "generate_static": "static"}.get(method, "cursor"),
        "tau": 0.95 if drafts else None,
        "draft": "B" if drafts else "",
        "scheduling": "static",
        "repeat": repeat,
        "prompts": 20,
        "seconds": seconds,
        "tokens": 100,
        "tokens_per_s": 100 / seconds,
        "tokens_per_forward": 2.0 if drafts else 1.0,
    }
    return row | more


def grid_of(*rows: dict[str, Any]) -> Grid:
    return Grid(pd.DataFrame(rows))


def write(folder: Path, *rows: dict[str, Any], seed: int = 0) -> Path:
    path = folder / f"seed{seed}" / "throughput.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    return folder


def rows_of(table: Table, section: int = 0) -> dict[str, Any]:
    return {row["model"]: row for row in table.sections[section].rows}


def test_the_opponent_is_the_fastest_ar_at_each_batch_size():
    grid = grid_of(
        run("generate", 3.0, batch_size=1),
        run("generate_static", 4.0, batch_size=1),
        run("ar", 5.0, batch_size=1),
        run("mars", 1.0, batch_size=1),
        run("generate", 9.0),
        run("generate_static", 7.0),
        run("ar", 8.0),
        run("mars", 3.5),
    )
    assert grid.opponent(1) == Setting("generate", None, 1)
    assert grid.opponent(4) == Setting("generate_static", None, 4)
    assert grid.opponent(8) is None
    assert grid.speedup(Setting("cursor", None, 4), grid.opponent(4)) == Repeated(2.0, None)


def test_no_ar_method_is_faster_than_the_opponent_in_the_ratios_that_are_shown():
    """By the medians of their seconds it would be ``ar``, over which ``generate`` is at 1.25."""
    grid = grid_of(
        *(run("ar", s, i) for i, s in enumerate((5.0, 4.0, 10.0))),
        *(run("generate", s, i) for i, s in enumerate((6.0, 3.2, 6.0))),
        *(run("generate_static", s, i) for i, s in enumerate((9.0, 9.0, 9.0))),
    )
    assert grid.opponent(4) == Setting("generate", None, 4)
    for method in ("ar", "generate", "generate_static"):
        assert grid.speedup(Setting(method, None, 4), grid.opponent(4)).value <= 1


def test_ratios_are_taken_within_a_repeat_and_seed():
    """The machine slows down twofold in the second repeat: the ratio does not see it."""
    grid = grid_of(
        *(run("ar", s, i) for i, s in enumerate((2.0, 4.0, 2.2))),
        *(run("mars", s, i) for i, s in enumerate((1.0, 2.0))),
        run("ar", 6.0, 0, seed=1),
        run("mars", 2.0, 0, seed=1),
    )
    ar, mars = Setting("ar", None, 4), Setting("cursor", None, 4)
    assert grid.of("seconds", ar) == Repeated(3.1, pytest.approx(pd.Series([2, 4, 2.2, 6]).std()))
    # 2, 2 and, of the other seed, 3; the third repeat has no MARS run and counts in no ratio
    assert grid.speedup(mars, ar) == Repeated(2.0, pytest.approx(3**-0.5))


def test_efficiency_is_of_tokens_per_second():
    longer = {"tokens": 300, "tokens_per_s": 150.0, "tokens_per_forward": 1.5}
    grid = grid_of(run("generate", 0.5), run("ar", 1.0), run("mars", 2.0, **longer))
    mars = Setting("cursor", None, 4)
    assert grid.efficiency(mars) == Repeated(1.0, None)  # over our loop, 150 ÷ 100 ÷ 1.5
    assert grid.efficiency(mars, grid.opponent(4)) == Repeated(0.5, None)  # 150 ÷ 200 ÷ 1.5
    assert grid.speedup(mars, grid.opponent(4)) == Repeated(0.25, None)  # of seconds
    alone = grid_of(run("mars", 2.0))
    assert alone.efficiency(mars) is None
    assert alone.opponent(4) is None


def test_shares_are_of_the_machines_ceilings():
    grid = grid_of(
        run("ar", 1.0, gflops_per_s=30.0, peak_gflops_per_s=120.0, model_tokens=12.0),
        run("ar", 1.0, 1, gflops_per_s=60.0, peak_gflops_per_s=120.0, model_tokens=12.0),
    )
    ar = Setting("ar", None, 4)
    assert grid.share("gflops_per_s", ar) == Repeated(37.5, pytest.approx(25 / SQRT2))
    assert grid.share("gbytes_per_s", ar) is None  # not recorded


def test_the_roofline_predicts_from_the_work_and_its_nearer_ceiling(study, tmp_path):
    """AR reads 40 GB in 4 s at 10 of 20 GB/s; MARS computes 90 GFLOP in 3 s at 30 of 50 GFLOP/s."""
    at = {"peak_gflops_per_s": 50.0, "peak_gbytes_per_s": 20.0, "model_tokens": 1.0}
    at |= {"model_forwards": 1.0, "acceptance": "replayed", "tau": None}
    ar = {"gflops_per_s": 5.0, "gbytes_per_s": 10.0}
    mars = {"gflops_per_s": 30.0, "gbytes_per_s": 8.0}
    results = write(
        tmp_path,
        run("ar", 4.0, **at, **ar),
        run("mars", 3.0, **at, **mars),
        run("mars", 3.0, **(at | mars | {"gbytes_per_s": None}), cache="none"),
    )
    rows = rows_of(build("roofline", study, results), section=1)
    assert rows["AR, this suite's loop"]["predicted"] == pytest.approx(40 / 20)
    cursor = rows["MARS + cursor cache"]
    assert cursor["predicted"] == pytest.approx(90 / 50)
    assert cursor["predicted_vs_ar"] == pytest.approx(2 / 1.8)
    assert cursor["vs_ar"] == Repeated(pytest.approx(4 / 3), None)
    assert cursor["of_predicted"] == pytest.approx((4 / 3) / (2 / 1.8))
    # of work that is not known whole nothing is predicted
    assert rows["MARS (no cache)"]["predicted"] is None
    assert rows["MARS (no cache)"]["of_predicted"] is None


def test_prompts_are_those_that_a_run_decoded(study, results, tmp_path):
    """Not those that the study may use: ``batches`` cuts a run of small batches short."""
    assert (study.throughput.prompts, study.throughput.batches) == (128, 4)
    for name in ("table5", "replay"):
        table = build(name, study, results)
        rows = [row for section in table.sections for row in section.rows]
        assert {(row["batch_size"], row["prompts"]) for row in rows} == {
            (1, 4), (4, 16), (8, 32), (16, 64), (32, 128),
        }  # fmt: skip
        assert "the first 4 to 128 prompts of toy_gsm8k (4 batches at" in " ".join(table.notes)
    assert "the first 4 to 128 prompts" in caption("wall_clock", study)
    whole = with_grid(study, batches=None)
    assert ", 128 prompts of toy_gsm8k," in " ".join(build("table5", whole, tmp_path).notes)


def test_methods_are_told_apart_and_ordered():
    block = {"cache": "block"}
    grid = grid_of(
        run("mars", 1.0, draft="auto"),
        run("mars", 1.0),
        run("mars", 1.0, **block, cache_block=16),
        run("mars", 1.0, **block, cache_block=8),
        run("mars", 1.0, **block, cache_block=8, draft="auto"),  # no row of any table
        run("mars", 1.0, cache="none"),
        run("released", 1.0, **block, cache_block=8),
        run("generate", 1.0),
    )
    assert [(s.method, s.cache_block) for s in grid.settings] == [
        ("generate", None),
        ("released", 8),
        ("none", None),
        ("block", 8),
        ("block", 16),
        ("cursor", None),
        ("auto", None),
    ]


def with_grid(study: Study, **change: Any) -> Study:
    assert study.throughput is not None
    raw = study.model_dump(mode="json")
    raw["throughput"] |= change
    return parse_study(raw)


def test_ar_stands_beside_every_threshold(study, tmp_path):
    """Also where it was measured again beside each, which is one opponent, not two."""
    results = write(
        tmp_path,
        run("ar", 8.0),
        run("ar", 4.0),
        run("mars", 3.0),
        run("mars", 2.0, tau=0.7),
        *(run(method, 1.0, acceptance="replayed", tau=None) for method in ("ar", "mars")),
        run("ar", 1.0, part="batching"),
    )
    several = with_grid(study, thresholds=[0.95, 0.7])
    table = build("table5", several, results)
    assert [section.title for section in table.sections] == ["τ = 0.95", "τ = 0.7"]
    for section, speedup in ((0, 2.0), (1, 3.0)):
        rows = rows_of(table, section)
        assert rows["AR, this suite's loop"]["seconds"] == Repeated(6.0, None)
        assert rows["MARS + cursor cache"]["speedup"] == Repeated(speedup, None)
    replayed = load_grid(several, results, None)
    assert replayed.settings == [Setting("ar", None, 4), Setting("cursor", None, 4)]
    assert replayed.of("seconds", replayed.settings[0]) == Repeated(1.0, None)
    assert threshold(several.throughput) == 0.95
    assert threshold(with_grid(study, thresholds=[1.0]).throughput) == 1.0
    assert threshold(with_grid(study, thresholds=[]).throughput) is None


def test_replayed_acceptance_is_labelled_everywhere(study, results):
    for name in ("replay", "batching"):
        table = build(name, study, results)
        assert "replayed acceptance" in table.title
        assert {row["acceptance"] for row in table.sections[0].rows} == {"replayed acceptance"}
        assert "no quality is measured" in " ".join(table.notes)
        assert "(paper)" not in table.csv()
    achieved = build("roofline", study, results)
    assert [s.title for s in achieved.sections] == ["τ = 0.95", "Replayed acceptance"]
    assert {row["acceptance"] for row in achieved.sections[0].rows} == {"model"}
    assert {row["acceptance"] for row in achieved.sections[1].rows} == {"replayed acceptance"}
    assert "60 GFLOP/s and 12 GB/s" in " ".join(achieved.notes)
    assert "replayed" not in build("table5", study, results).csv()


@pytest.mark.parametrize(("ar", "ratio"), [(6.0, 0.8), (3.0, 0.6)])
def test_auto_is_held_to_the_better_of_ar_and_fixed_drafts(study, tmp_path, ar, ratio):
    replayed = {"acceptance": "replayed", "tau": None}
    results = write(
        tmp_path,
        run("ar", ar, **replayed),
        run("mars", 4.0, **replayed),
        run("mars", 5.0, **replayed, draft="auto"),
        run("released", 10.0, **replayed, cache="block", cache_block=32),
    )
    rows = rows_of(build("replay", study, results))
    assert rows["MARS + cursor cache, draft auto"]["vs_better"] == Repeated(ratio, None)
    assert rows["MARS + cursor cache, draft auto"]["vs_released"] == Repeated(2.0, None)
    assert "vs_better" not in rows["MARS + cursor cache"]
    assert rows["MARS + cursor cache"]["vs_generate"] is None


def test_the_papers_numbers_stand_beside_the_same_method_batch_and_block(study, results):
    rows = build("table5", study, results).sections[0].rows
    theirs = {
        (row["model"], row["cache_block"], row["batch_size"]): row["paper_speedup"]
        for row in rows
        if "paper_speedup" in row
    }
    assert theirs["MARS + block cache", 16, 16] == 1.34
    assert theirs["MARS, algorithm as released", 32, 4] == 1.71
    assert theirs["MARS (no cache)", None, 8] == 0.49
    assert {batch for _, _, batch in theirs} == {4, 8, 16}
    assert not [model for model, *_ in theirs if "cursor" in model or "loop" in model]


def test_a_batching_row_needs_both_schedulings(study, tmp_path):
    part = {"part": "batching", "acceptance": "replayed", "tau": None, "batch_size": 8}
    results = write(
        tmp_path,
        run("ar", 6.0, **part),
        run("ar", 4.0, **part, scheduling="continuous"),
        run("mars", 6.0, **part),
    )
    (row,) = build("batching", study, results).sections[0].rows
    assert row["model"] == "AR, this suite's loop"
    assert row["slots"] == 8
    assert row["ratio"] == Repeated(pytest.approx(1.5), None)


def test_a_measurement_from_before_names_what_to_do(study, tmp_path):
    old = {k: v for k, v in run("ar", 1.0).items() if k != "part"}
    with pytest.raises(ResultsError, match=r"no column 'part'; delete the file"):
        load_throughput(study, write(tmp_path, old))


def test_a_spread_has_its_own_column_in_the_csv():
    columns = [Column("x", "Ratio", decimals=2, spread=True), Column("y", "Lone", spread=True)]
    rows = [{"x": Repeated(1.234, 0.056), "y": Repeated(2.0, None)}, {}]
    table = Table("t", "T", columns, [Section("", rows)])
    assert table.csv().splitlines() == ["Ratio,Ratio_sd,Lone,Lone_sd", "1.234,0.056,2,", ",,,"]
    assert "| 1.23 ± 0.06 | 2.0 |" in table.markdown()
    assert "| – | – |" in table.markdown()
    assert Repeated.of([3.0, float("nan"), 1.0]) == Repeated(2.0, pytest.approx(SQRT2))
    assert Repeated.of([float("nan")]) is None


def test_the_trace_lasts_as_long_as_something_is_in_flight(fixed):
    study, results = fixed
    spent = durations.durations(study, results)
    assert spent is not None
    assert spent.stages["arrivals"] == 24 + 14  # no gap between requests, in either policy


def test_the_profile_leaves_the_rest_to_python(study, results, tmp_path):
    table = build("profile", study, results)
    rows = {(row["model"], row["batch_size"]): row for row in table.sections[0].rows}
    mine = rows[LABELS["cursor"], 4]
    assert mine["width"] == 5 * 4
    assert mine["rest"] == pytest.approx(2.0 - 0.8 - 0.3 - 0.2)
    runs = pd.read_csv(results / "seed0" / "throughput.profile.csv")
    runs["other_ms"] = 5.0  # the profiler's own time, beyond what a forward takes
    (tmp_path / "seed0").mkdir()
    runs.to_csv(tmp_path / "seed0" / "throughput.profile.csv", index=False)
    again = build("profile", study, tmp_path)
    assert all(row["rest"] is None for row in again.sections[0].rows)
    assert build("profile", study, tmp_path / "nothing").empty
