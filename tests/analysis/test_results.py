"""What is read from a results folder: typed, of the study only, and named where it is broken."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from mars.analysis import durations
from mars.analysis.figures import loss_curves
from mars.analysis.results import (
    ARRIVALS_COLUMNS,
    THROUGHPUT_COLUMNS,
    ResultsError,
    iter_records,
    load_arrivals,
    load_evaluation,
    load_throughput,
    load_training,
)
from mars.analysis.tables import build
from mars.analysis.tables.rules import calibration_bins
from mars.config import parse_study


def test_loaders_have_their_documented_columns(study, results):
    evaluation = load_evaluation(study, results)
    assert set(evaluation["decoder"]) == {"ar", "mars", "block_diffusion", "jacobi"}
    assert evaluation["block_size"].dtype == np.int64
    records = list(iter_records(results / evaluation["records"].iloc[0]))
    assert {"task", "doc_id", "score", "accepted"} <= set(records[0])
    assert len(records) == evaluation["documents"].iloc[0]
    assert {"seed", "scale", "variant", "loss_ar", "loss_mask"} <= set(
        load_training(study, results)
    )
    timed = load_throughput(study, results)
    assert set(timed["method"]) == {"generate", "generate_static", "ar", "mars", "released"}
    assert list(timed) == list(THROUGHPUT_COLUMNS)
    assert list(load_arrivals(study, results)) == list(ARRIVALS_COLUMNS)
    assert load_evaluation(study, results / "nowhere").empty


def test_what_a_removed_variant_scale_or_seed_left_behind_counts_nowhere(study, partial):
    """Every number of a study cut down is that of a folder which never held anything else."""
    header = "s\th:m:s\tmax_rss\n"
    timed = ("throughput/seed0", "arrivals/seed0", "training_cost/seed0")
    jobs = ("train/seed0/toy-s/mars_b4", "train/seed0/toy-m/mars_b4", "train/seed0/toy-s/mars_b8")
    gone = ("train/seed7/toy-s/mars_b4", "throughput/seed7")
    for job in (*jobs, *gone, *timed, "table/table2"):
        path = partial / "benchmarks" / f"{job}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{header}100\t0:01:40\t700\n")
    shutil.copytree(partial / "seed0", partial / "seed7")
    raw = study.model_dump(mode="json")
    raw["scales"] = {"toy-s": raw["scales"]["toy-s"]}
    raw["variants"] = {n: raw["variants"][n] for n in ("base", "ar_sft", "mars_b4")}
    raw["throughput"] = raw["training_cost"] = None
    small = parse_study(raw)

    def numbers() -> list[object]:
        frames = [load(small, partial) for load in (load_evaluation, load_training)]
        frames += [calibration_bins(small, partial), loss_curves.data(small, partial)]
        tables = [build(name, small, partial).csv() for name in ("table2", "chance", "jacobi")]
        return [*(frame.to_csv() for frame in frames), *tables, durations.durations(small, partial)]

    assert set(load_evaluation(study, partial)["seed"]) == {0}
    assert load_throughput(small, partial).empty
    assert load_arrivals(small, partial).empty
    spent = durations.durations(small, partial)
    assert spent is not None
    assert spent.stages == {"table": 100.0, "train": 100.0}
    shutil.rmtree(partial / "benchmarks")
    before = numbers()
    assert set(load_evaluation(small, partial)["variant"]) == {"base", "ar_sft", "mars_b4"}
    for folder in [partial / "seed7", *(partial / "seed0").iterdir()]:
        if folder.is_dir() and folder.name != "toy-s":
            shutil.rmtree(folder)
    for folder in (partial / "seed0/toy-s").iterdir():
        if folder.name not in small.variants:
            shutil.rmtree(folder)
    (partial / "seed0/throughput.csv").unlink()
    (partial / "seed0/arrivals.csv").unlink()
    (partial / "seed0/training_cost.csv").unlink()
    assert numbers() == before


def test_a_half_written_record_is_left_out_and_a_broken_one_is_named(study, partial):
    frame = load_evaluation(study, partial)
    path = partial / frame["records"].iloc[0]
    text = path.read_text()
    path.write_text(text + '{"task": "to')
    assert len(list(iter_records(path))) == frame["documents"].iloc[0]
    path.write_text('{"task": "to\n' + text)
    with pytest.raises(ResultsError, match=r"line 1 is not JSON"):
        list(iter_records(path))


def test_a_column_that_is_not_there_is_named(study, partial):
    path = partial / "seed0/toy-s/base/evaluation.csv"
    pd.read_csv(path).drop(columns="score").to_csv(path, index=False)
    with pytest.raises(ResultsError, match=r"base/evaluation.csv: no column 'score'"):
        load_evaluation(study, partial)
