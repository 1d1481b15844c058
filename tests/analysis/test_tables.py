"""Tables against files written by hand, and what they do where something is missing."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mars.analysis import labels, paper
from mars.analysis.missing import missing
from mars.analysis.parts import COMPARED, FORMS
from mars.analysis.render import Row, Table
from mars.analysis.results import (
    load_evaluation,
)
from mars.analysis.statistics import Estimate, Repeated, holm
from mars.analysis.summary import summarise
from mars.analysis.tables import TABLES, build, write_table
from mars.analysis.tables.forms import forms
from mars.config import load_study, parse_study

from . import synthetic
from .conftest import FIXED

FIXED_TABLES = ["table2", "table4", "table5", "roofline", "replay", "batching"]
COMPARED_BY_HAND = [
    *("table2.ours", "table2.paper", "table2.difference"),
    *("table4.ours", "table4.paper", "table4.difference"),
    *("table5.ours", "table5.difference"),
]


@pytest.mark.parametrize("name", FIXED_TABLES)
def test_csv_is_the_one_worked_out_by_hand(fixed, tmp_path, name):
    write_table(name, *fixed, tmp_path)
    expected = (FIXED / "expected" / f"{name}.csv").read_text(encoding="utf-8")
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("name", COMPARED_BY_HAND)
def test_each_form_is_the_one_worked_out_by_hand(fixed, tmp_path, name):
    write_table(name.partition(".")[0], *fixed, tmp_path)
    expected = (FIXED / "expected" / f"{name}.csv").read_text(encoding="utf-8")
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8") == expected


def test_markdown_is_the_one_written_by_hand(fixed, tmp_path):
    write_table("table4", *fixed, tmp_path)
    made = (tmp_path / "table4.md").read_text(encoding="utf-8")
    title, _, body = made.partition("\n\n")
    assert title == "# Table 4: several tokens per forward (τ < 1)"
    expected = (FIXED / "expected" / "table4.md").read_text(encoding="utf-8")
    assert body.startswith(expected + "\n- ")
    assert "absolute scores do not compare" in body


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_has_rows_of_its_own_and_equal_columns(study, results, tmp_path, name):
    paths = write_table(name, study, results, tmp_path)
    stems = [name, *(f"{name}.{form}" for form in FORMS if name in COMPARED)]
    assert [p.name for p in paths] == [f"{s}.{end}" for s in stems for end in ("csv", "md", "tex")]
    rows = list(csv.reader(io.StringIO(paths[0].read_text(encoding="utf-8"))))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [p for p in tmp_path.iterdir() if p not in paths]  # no temporary file is left


def test_columns_and_rows_are_in_the_papers_order(study, results):
    table = build("table2", study, results)
    titles = [column.title for column in table.columns]
    assert titles[-7:] == ["IFEval", "BBH", "MMLU-Pro", "GPQA", "GSM8K", "HumanEval", "Avg"]
    small = [r for r in table.sections[0].rows if r["scale"] == "toy-s"]
    assert [r["model"] for r in small] == [
        "Base (no fine-tune)",
        "AR SFT",
        "AR SFT, budget of both stages (compute-matched)",
        "Block Diffusion",
        "MARS w/o SFT loss",
        "MARS w/o SFT loss (alignment as released)",
        "MARS",
    ]
    theirs = [r for r in table.sections[0].rows if r["source"] == "paper"]
    printed = paper.table("table2")
    assert [r["Avg"] for r in theirs] == list(printed["Avg"])
    assert [r["toy_bbh"] for r in theirs] == list(printed["BBH"])


def test_avg_carries_an_interval_and_differences_a_narrower_one(study, results):
    table = build("table2", study, results)
    row = next(r for r in table.sections[0].rows if r["model"] == "MARS")
    change = next(r for r in table.sections[1].rows if r["model"] == "MARS")
    low, high = row["Avg"].interval
    assert low < row["Avg"].value < high
    narrow = change["Avg"].interval
    assert narrow[1] - narrow[0] < 0.75 * (high - low)  # paired by document
    assert f"[{low:.1f}, {high:.1f}]" in table.markdown()


def test_avg_is_the_mean_of_its_row(study, results):
    for row in build("table3", study, results).sections[0].rows:
        if row["source"] == "ours":
            cells = [row[b].value for b in study.evaluation.benchmarks]
            assert row["Avg"].value == pytest.approx(np.mean(cells))


def test_a_missing_benchmark_leaves_its_cell_and_avg_empty(study, partial, tmp_path):
    path = partial / "seed0/toy-s/mars_b4/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["benchmark"] != "toy_gpqa"].to_csv(path, index=False)
    write_table("table2", study, partial, tmp_path)
    frame = pd.read_csv(tmp_path / "table2.csv")
    row = frame[(frame["Scale"] == "toy-s") & (frame["Model"] == "MARS")]
    assert row["GPQA"].isna().all()
    assert row["Avg"].isna().all()
    assert row["GSM8K"].notna().all()
    line = next(
        x
        for x in (tmp_path / "table2.md").read_text().splitlines()
        if x.startswith("| toy-s | MARS |")
    )
    assert line.count(" – ") == 2


def test_the_difference_form_says_which_differences_are_more_than_chance(study, results, partial):
    made = forms(build("table2", study, results), study, results)["difference"]
    assert [section.title.partition(" ")[0] for section in made.sections] == ["Difference", "p"]
    tested = made.sections[1].rows
    rows = build("table2", study, results).sections[1].rows
    rows = [row for row in rows if row["source"] == "ours"]
    assert [row["model"] for row in tested] == [row["model"] for row in rows]
    keys = [*study.evaluation.benchmarks, "Avg"]
    raw = [row["p"][key] for row in rows for key in keys]
    assert [row[key] for row in tested for key in keys] == holm(raw)
    assert "McNemar" in made.markdown()
    path = partial / "seed0/toy-s/mars_b4/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["benchmark"] != "toy_gpqa"].to_csv(path, index=False)
    made = forms(build("table2", study, partial), study, partial)["difference"]
    row = next(r for r in made.sections[1].rows if (r["scale"], r["model"]) == ("toy-s", "MARS"))
    assert (row["toy_gpqa"], row["Avg"]) == (None, None)
    assert row["toy_gsm8k"] is not None


SETTINGS = {"id", "block_size", "tau", "tau_theirs", "batch_size", "cache_block", "slots", "bin"}
"""Cells that may be numbers where nothing was measured: they say what would be."""


def measured(table: Table, row: Row) -> list[str]:
    """The cells of a row that hold a number, but for settings and for the paper's."""
    if row.get("source") == "paper":
        return []
    keys = {column.key for column in table.columns} - SETTINGS
    return sorted(
        key
        for key in keys
        if not key.startswith("paper")
        and (isinstance(row.get(key), Estimate | Repeated) or _number(row.get(key)))
    )


def _number(value: object) -> bool:
    try:
        return not np.isnan(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


@pytest.mark.parametrize("name", list(TABLES))
def test_an_empty_results_folder_gives_tables_without_numbers_of_ours(
    study, results, tmp_path, name
):
    def numbers(folder: Path) -> list[str]:
        table = build(name, study, folder)
        compared = forms(table, study, folder) if name in COMPARED else {}
        shown = [table, *(made for form, made in compared.items() if form != "paper")]
        rows = [(made, row) for made in shown for part in made.sections for row in part.rows]
        return [key for made, row in rows for key in measured(made, row)]

    guessed = ["toy_gpqa", "toy_mmlu_pro"] if name == "chance" else []  # one of so many options
    assert numbers(results)
    assert numbers(tmp_path / "none") == guessed


def test_missing_lists_each_gap_with_its_command(study, results, partial):
    assert missing(study, results) == []
    (partial / "seed0/toy-m/mars_b8/evaluation.csv").unlink()
    (partial / "seed0/toy-s/mars_b4/training.json").unlink()
    (partial / "seed0/throughput.csv").unlink()
    (partial / "seed0/arrivals.csv").unlink()
    (partial / "seed0/training_cost.csv").unlink()
    path = partial / "seed0/toy-s/mars_b16/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["tau"] != 0.7].to_csv(path, index=False)
    path = partial / "seed0/toy-s/ar_sft/evaluation.csv"
    cut = pd.read_csv(path).assign(available=1319, expected=1319)
    cut.loc[cut["benchmark"] == "toy_gsm8k", "available"] = 1200
    cut.to_csv(path, index=False)
    found = {gap.what: gap.command for gap in missing(study, partial)}
    assert set(found) == {
        "evaluation of seed 0, toy-m, mars_b8",
        "training of seed 0, toy-s, mars_b4",
        "wall-clock grid of seed 0",
        "arrival trace of seed 0",
        "training cost of seed 0",
        "evaluation of seed 0, toy-s, mars_b16 on toy_gsm8k (mars τ 0.7 probability)",
        "evaluation of seed 0, toy-s, mars_b16 on toy_humaneval (mars τ 0.7 probability)",
        "toy_gsm8k of seed 0, toy-s, ar_sft had 1,200 of 1,319 documents: fetch it again, then "
        "evaluate",
    }
    for what, file in (
        ("evaluation of seed 0, toy-m, mars_b8", "toy-m/mars_b8/evaluation.csv"),
        ("arrival trace of seed 0", "arrivals.csv"),
    ):
        target = f"{partial.as_posix()}/seed0/{file}"
        assert found[what] == f"snakemake --cores 8 {target}"  # embedded is what it runs unasked


def test_the_command_for_a_gap_names_the_configuration_as_it_was_run(study, partial):
    (partial / "seed0/toy-m/mars_b8/evaluation.csv").unlink()
    path = partial / "seed0/toy-s/mars_b16/evaluation.csv"
    frame = pd.read_csv(path)
    frame[frame["benchmark"] != "toy_gpqa"].to_csv(path, index=False)
    changed = parse_study(study.model_dump(mode="json") | {"data_root": "here"})
    commands = [gap.command for gap in missing(changed, partial)]
    config = f"--configfile {partial.as_posix()}/config.yaml"
    assert len(commands) == 2
    assert all(command.endswith(config) for command in commands)
    assert "--forcerun" not in commands[0]
    assert f"--forcerun {path.as_posix()} --conf" in commands[1]  # it is there, and lacks rows


def test_scores_are_paired_by_document(study, results):
    summary = summarise(study, results)
    at = ("ar_sft", summary.decoding("ar_sft", "toy_gsm8k"))
    same = summary.difference("toy-s", "toy_gsm8k", at, at)
    assert same is not None
    assert same.value == 0.0
    assert same.interval == (0.0, 0.0)


def test_records_that_do_not_explain_the_score_give_no_interval(study, partial):
    path = partial / "seed0/toy-s/ar_sft/evaluation.csv"
    frame = pd.read_csv(path)
    frame.loc[frame["benchmark"] == "toy_gsm8k", "score"] += 1.0
    frame.to_csv(path, index=False)
    summary = summarise(study, partial)
    decoding = summary.decoding("ar_sft", "toy_gsm8k")
    estimate = summary.score("toy-s", "ar_sft", "toy_gsm8k", decoding)
    assert estimate is not None
    assert estimate.interval is None
    assert summary.score("toy-s", "ar_sft", "toy_gpqa", decoding).interval is not None


def test_weighting_of_sub_tasks_is_the_one_that_gives_the_score(study, partial):
    folder = partial / "seed0/toy-s/ar_sft"
    frame = pd.read_csv(folder / "evaluation.csv")
    row = frame.index[(frame["benchmark"] == "toy_bbh") & (frame["decoder"] == "ar")][0]
    lines = [json.loads(x) for x in (partial / frame.loc[row, "records"]).read_text().splitlines()]
    for i, record in enumerate(lines):
        record.update(task="easy" if i < 45 else "hard", score=float(i < 45), doc_id=i)
    text = "".join(json.dumps(r) + "\n" for r in lines)
    (partial / frame.loc[row, "records"]).write_text(text)
    for score, weighting in ((50.0, "equal"), (75.0, "size")):
        frame.loc[row, "score"] = score
        frame.to_csv(folder / "evaluation.csv", index=False)
        summary = summarise(study, partial)
        cells = summary.cells("toy-s", "ar_sft", "toy_bbh", summary.decoding("ar_sft", "toy_bbh"))
        assert cells[0].records is not None
        assert cells[0].weighting == weighting


def test_several_seeds_are_pooled_and_their_spread_reported(tmp_path):
    raw = synthetic.embedded().model_dump(mode="json")
    raw |= {"study": "two", "seeds": [0, 1]}
    raw["scales"] = {"toy-s": raw["scales"]["toy-s"]}
    raw["throughput"] = raw["training_cost"] = None
    for variant in raw["variants"].values():
        variant["scales"] = None
    raw["variants"] = {k: raw["variants"][k] for k in ("base", "ar_sft", "mars_b4")}
    raw["evaluation"] |= {"sweep": "none", "acceptance": None, "jacobi": None}
    study = parse_study(raw)
    results = synthetic.make_results(tmp_path / "two", study)
    frame = load_evaluation(study, results)
    ar = frame[(frame["variant"] == "ar_sft") & (frame["decoder"] == "ar")]
    row = build("table2", study, results).sections[0].rows[2]
    assert row["model"] == "AR SFT"
    by_seed = ar.groupby("seed")["score"].mean()
    assert row["Avg"].value == pytest.approx(by_seed.mean())
    assert row["Avg"].seed_sd == pytest.approx(by_seed.std())
    write_table("table2", study, results, tmp_path)
    assert "Avg_seed_sd" in pd.read_csv(tmp_path / "table2.csv")
    assert "seeds ±" in (tmp_path / "table2.md").read_text(encoding="utf-8")
    shutil.rmtree(results / "seed1")
    assert any("seed 1" in gap.what for gap in missing(study, results))


def test_a_variant_of_ones_own_has_its_row(study, results):
    raw = study.model_dump(mode="json")
    raw["variants"]["half"] = raw["variants"]["mars_b4"] | {"ar_weight": 0.5, "scales": ["toy-s"]}
    mine = parse_study(raw)
    rows = build("table2", mine, results).sections[0].rows
    own = [r for r in rows if r["model"] == "MARS, ar_weight 0.5"]
    assert len(own) == 1
    assert own[0]["Avg"] is None
    assert len([r for r in rows if r["source"] == "paper"]) == len(paper.table("table2"))


def test_chance_comes_from_the_study_where_it_is_recorded(study, partial):
    guess = build("chance", study, partial).sections[0].rows[0]
    assert guess["toy_mmlu_pro"] == 10.0
    assert guess["toy_gsm8k"] is None
    assert guess["Avg"] is None
    (partial / "chance.csv").write_text(
        "benchmark,score\n" + "".join(f"{b},30\n" for b in study.evaluation.benchmarks)
    )
    table = build("chance", study, partial)
    assert table.sections[0].rows[0]["Avg"] == 30.0
    scores, above = table.sections[0].rows[2], table.sections[1].rows[1]
    assert above["toy_bbh"].value == pytest.approx(scores["toy_bbh"].value - 30)


def test_unknown_names_say_what_there_is(study, results, tmp_path):
    with pytest.raises(
        ValueError, match="unknown table 'tabel2'; choose from claims, glance, table2"
    ):
        write_table("tabel2", study, results, tmp_path)


def test_the_papers_tables_are_whole():
    for name in ("table2", "table3", "table4"):
        rows = paper.table(name)
        gap = (rows[list(paper.COLUMNS)].mean(axis=1) - rows["Avg"]).abs()
        assert gap.max() < 0.16, name  # its averages are of unrounded scores
    assert len(paper.table("table5")) == 27
    assert paper.facts()["jacobi_tokens_per_forward"]["baseline"] == 1.07
    assert paper.scores("table2", "7B", labels.AR_SFT, None)["Avg"] == 56.6
    assert paper.scores("table2", "0.5B", labels.AR_SFT, None)["Avg"] == 28.7
    assert paper.scores("table2", "3B", labels.AR_SFT, None) is None


def test_analysis_imports_nothing_of_ours_but_the_configuration():
    for path in (Path(labels.__file__).parent).rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and words[1].split(".")[0] == "mars":
                module = words[1] if words[0] == "import" else f"{words[1]}.{words[3]}"
                assert module.startswith(("mars.analysis", "mars.config")), (path, line)


def test_what_a_study_did_otherwise_than_the_paper_is_said_as_it_did_it():
    def notes(name: str, **change: object) -> str:
        raw = load_study(synthetic.ROOT / "config" / f"{name}.yaml").model_dump(mode="json")
        made = parse_study(raw | change)
        return " ".join(build("table2", made, Path("nowhere")).notes)

    assert "Here each stage has distinct examples, seen once, and the control is one schedule " in (
        notes("embedded")
    )
    said = notes("paper")
    assert "distinct" not in said
    assert (
        "Here both stages have the same examples, seen 5 times, and the control sees them 10"
        in said
    )
    assert "Here" not in notes("paper", checkpoints="released")

    def timed(name: str) -> str:
        made = load_study(synthetic.ROOT / "config" / f"{name}.yaml")
        return " ".join(build("table5", made, Path("nowhere")).notes)

    assert "also ran" not in timed("paper")  # which times all of the paper's
    assert "It also ran B_cache 64, 128 and 256." in timed("embedded")
