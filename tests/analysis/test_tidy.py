"""Records as one frame: the same from Parquet and from JSONL, and never older than its records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from mars.analysis import load, load_generations, load_steps, load_throughput, load_tokens, tidy
from mars.analysis.columns import THROUGHPUT
from mars.analysis.generations import STEP, TOKEN, WHO
from mars.analysis.results import (
    ResultsError,
    iter_records,
    load_evaluation,
)
from mars.config import Study, dump_study

from . import synthetic

DOCS = Path(__file__).parents[2] / "docs" / "results.md"


@pytest.fixture(scope="module")
def study() -> Study:
    return synthetic.reduced(("base", "ar_sft", "mars_b4", "mars_b8"))


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_results(tmp_path_factory.mktemp("made-up") / "reduced", study, 15)


@pytest.fixture(scope="module")
def written(study, results, tmp_path_factory) -> Path:
    """The made-up study with its Parquet files (hard links: nothing here writes into records)."""
    folder = tmp_path_factory.mktemp("written") / "results" / "reduced"
    for path in results.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(results)).parent.mkdir(parents=True, exist_ok=True)
            (folder / path.relative_to(results)).hardlink_to(path)
    assert [p.name for p in tidy.write_tidy(study, folder, folder)] == [
        "records.parquet",
        "generations.parquet",
    ]
    assert tidy.is_fresh(study, folder, folder / "records.parquet")
    return folder


def test_columns_and_types_are_the_documented_ones(results, written):
    for frame in (load(results), load(written)):
        assert list(frame) == list(tidy.COLUMNS)
        assert {n: str(frame[n].dtype) for n in frame} == {
            n: field.dtype for n, field in tidy.COLUMNS.items()
        }
    schema = pq.read_schema(written / "generations.parquet")
    for name, field in tidy.LONG.items():
        assert schema.field(name).type.equals(tidy.ARROW[field.dtype])


def test_the_documentation_lists_the_same_columns():
    """Rows of docs/results.md are | `name` | dtype | meaning |."""
    rows = [line.strip("| ").split(" | ") for line in DOCS.read_text().splitlines()]
    found = [(r[0].strip("`"), r[1], r[2]) for r in rows if len(r) == 3 and r[0].startswith("`")]
    parts = (tidy.COLUMNS, tidy.LONG, STEP, TOKEN, THROUGHPUT)
    assert found == [(n, f.dtype, f.meaning) for part in parts for n, f in part.items()]


def test_every_record_is_there_once_whichever_way_it_is_read(study, results, written):
    frame = load(written)
    pd.testing.assert_frame_equal(frame, load(results))
    evaluation = load_evaluation(study, results)
    assert len(frame) == evaluation["documents"].sum()
    assert not frame.duplicated(["records", "task", "doc_id", "repeat"]).any()
    sums = frame.groupby("records", observed=True)[["tokens", "forwards"]].sum()
    for name in ("tokens", "forwards"):
        assert sums[name].to_dict() == evaluation.set_index("records")[name].to_dict()


def test_frames_of_steps_tokens_and_texts_agree_with_the_lines_of_a_file(results, written):
    where = {"scale": "toy-s", "variant": "mars_b4", "benchmark": "toy_gsm8k", "tau": 0.95}
    where["rule"] = "probability"
    for folder in (results, written):
        texts = load_generations(folder, **where)
        steps, tokens = load_steps(folder, **where), load_tokens(folder, **where)
        name = texts["records"].unique()
        lines = list(iter_records(folder / name[0]))
        assert len(name) == 1
        assert list(steps) == [*WHO, *STEP]
        assert list(tokens) == [*WHO, *TOKEN]
        assert list(texts["output"]) == [line["output"] for line in lines]
        assert list(steps["accepted"]) == [a for line in lines for a in line["accepted"]]
        assert list(steps["forward"]) == [i for li in lines for i in range(len(li["accepted"]))]
        confidence = [c for line in lines for c in line["confidence"]]
        assert tokens["confidence"].to_numpy() == pytest.approx(confidence)
        offsets = [i for line in lines for a in line["accepted"] for i in range(a)]
        assert list(tokens["offset"]) == offsets
        assert len(tokens) == texts["tokens"].sum()
        assert len(steps) == texts["forwards"].sum()
        # the first token of every forward is at offset 0
        assert (tokens["offset"] == 0).sum() == len(steps)


def test_conditions_take_several_values_and_unknown_ones_are_errors(written):
    steps = load_steps(written, variant=["mars_b4", "mars_b8"], tau=0.95, scale="toy-s")
    assert set(steps["variant"].unique()) == {"mars_b4", "mars_b8"}
    assert len(load_steps(written, variant="nobody")) == 0
    with pytest.raises(ValueError, match="no column 'model'; choose from study, seed"):
        load_steps(written, model="mars_b4")


def test_results_that_changed_are_read_and_not_their_older_copy(study, partial):
    tidy.write_tidy(study, partial, partial)
    path = partial / load(partial)["records"].iloc[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["output"] = "another"
    lines[0]["tokens"] += 1000
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not tidy.is_fresh(study, partial, partial / "records.parquet")
    assert load(partial)["tokens"].iloc[0] == lines[0]["tokens"]
    assert load_generations(partial)["output"].iloc[0] == "another"
    tidy.write_tidy(study, partial, partial)
    csv = partial / "seed0/toy-s/mars_b4/evaluation.csv"
    pd.read_csv(csv).iloc[1:].to_csv(csv, index=False)
    assert not tidy.is_fresh(study, partial, partial / "records.parquet")


def test_a_folder_given_away_without_its_jsonl_files_still_loads(study, partial):
    whole = load(partial)
    tidy.write_tidy(study, partial, partial)
    for path in partial.rglob("*.jsonl"):
        path.unlink()
    pd.testing.assert_frame_equal(load(partial), whole)
    assert load_steps(partial, variant="mars_b4")["accepted"].sum() > 0
    (partial / "generations.parquet").unlink()  # and with the records alone
    pd.testing.assert_frame_equal(load(partial), whole)
    assert len(load_steps(partial, variant="mars_b4")) == 0


def test_missing_runs_and_unscored_records_are_missing_not_zero(study, partial):
    (partial / "seed0/toy-m/mars_b8/evaluation.csv").unlink()
    path = partial / load(partial)["records"].iloc[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"score": None, "confidence": []}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    frame = load(partial)
    assert not ((frame["scale"] == "toy-m") & (frame["variant"] == "mars_b8")).any()
    assert np.isnan(frame["score"].iloc[0])
    assert np.isnan(frame["least_confidence"].iloc[0])
    assert frame["score"].isna().sum() == 1


def test_of_an_answer_written_twice_the_last_scored_one_counts(partial):
    path = partial / load(partial)["records"].iloc[0]
    line = json.loads(path.read_text().splitlines()[0])
    with path.open("a") as file:
        file.write(json.dumps(line | {"tokens": 7}) + "\n")
        file.write(json.dumps(line | {"tokens": 8, "score": None}) + "\n")
        file.write('{"torn')
    frame = load(partial)
    mine = frame[(frame["records"] == path.relative_to(partial).as_posix())]
    same = mine[(mine["task"] == line["task"]) & (mine["doc_id"] == line["doc_id"])]
    assert list(same["tokens"]) == [7]


def test_a_study_is_found_by_name_from_a_folder_below(written, monkeypatch):
    below = written.parents[1] / "workflow" / "notebooks"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    pd.testing.assert_frame_equal(load("reduced"), load(written))
    with pytest.raises(ResultsError, match=r"nothere.*snakemake --cores 8 all --configfile"):
        load("nothere")


def test_the_wall_clock_grid_is_a_typed_frame_too(fixed, partial):
    study, measured = fixed
    shutil.copytree(measured, partial, dirs_exist_ok=True)
    (partial / "config.yaml").write_text(dump_study(study))
    frame = load_throughput(partial)
    assert {n: str(frame[n].dtype) for n in frame} == {n: f.dtype for n, f in THROUGHPUT.items()}
    csv = pd.read_csv(measured / "seed0" / "throughput.csv")
    assert list(frame) == list(csv)
    assert len(frame) == len(csv)
    for name in ("prompts", "checkpoint", "seconds"):
        assert list(frame[name]) == list(csv[name])
    assert frame["tau"].isna().sum() == csv["tau"].isna().sum() > 0


def test_the_wall_clock_grid_in_parquet_is_the_frame(fixed, tmp_path):
    study, results = fixed
    out = tmp_path / "throughput.parquet"
    tidy.write_throughput(study, results, out)
    schema = pq.read_schema(out)
    assert schema.names == list(THROUGHPUT)
    for name, field in THROUGHPUT.items():
        assert schema.field(name).type.equals(tidy.ARROW[field.dtype])
    kinds = {name: field.dtype for name, field in THROUGHPUT.items()}
    frame = pq.read_table(out).to_pandas().astype(kinds)
    pd.testing.assert_frame_equal(frame, load_throughput(fixed))
    tidy.write_throughput(study, tmp_path / "nothing", out)
    assert pq.read_schema(out).equals(schema)
    assert pq.read_table(out).num_rows == 0


def test_an_empty_study_has_the_columns_and_no_rows(tmp_path):
    (tmp_path / "config.yaml").write_text(dump_study(synthetic.embedded()))
    frame = load(tmp_path)
    assert list(frame) == list(tidy.COLUMNS)
    assert len(frame) == 0
