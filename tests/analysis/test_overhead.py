"""The training-overhead table: ratios worked out by hand, and what it does without a cost study."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from mars.analysis import paper
from mars.analysis.results import TRAINING_COST_COLUMNS, load_training_cost
from mars.analysis.tables import build
from mars.analysis.tables.overhead import AR_RELEASED, RELEASED
from mars.config import Study, parse_study

# method, variant, repeat, seconds of two steps, peak memory
FIXED = """\
ar_sft,ar_sft,1,0,0.8,50
mars,mars_b4,4,0,1.2,65
mars,mars_b16,16,0,1.6,70
ar_released,ar_sft,1,0,1.0,60
released,mars_b4,4,0,2.0,120
ar_sft,ar_sft,1,1,1.0,50
mars,mars_b4,4,1,1.4,65
mars,mars_b16,16,1,1.5,70
ar_released,ar_sft,1,1,1.1,60
released,mars_b4,4,1,2.2,120
ar_sft,ar_sft,1,2,4.0,50
mars,mars_b4,4,2,6.4,65
mars,mars_b16,16,2,6.8,70
ar_released,ar_sft,1,2,4.0,60
released,mars_b4,4,2,8.8,120
"""


@pytest.fixture
def table(study: Study, partial: Path):
    return measured(study, partial)


def measured(study: Study, partial: Path, peak: str = ""):
    """The table of ``FIXED``, in a file with the column of ceilings or, an older one, without."""
    lines = ["method,variant,block_size,repeat,seconds,peak_memory_mb,scale,conversations,steps,"]
    lines[0] += "tokens,columns,tokens_per_s,gflops,gflops_per_s"
    lines[0] += ",peak_gflops_per_s" * bool(peak)
    for line in FIXED.splitlines():
        seconds = float(line.split(",")[4])
        found = f"{line},toy-m,64,2,4000,5000,{4000 / seconds},10,{10 / seconds}"
        lines.append(found + f",{peak}" * bool(peak))
    path = partial / "seed0" / "training_cost.csv"
    path.write_text("\n".join(lines) + "\n")
    return build("training_overhead", study, partial)


def row(table, model: str, scale: str = "toy-m", block_size: int | None = None):
    (found,) = (
        r
        for r in table.sections[0].rows
        if (r["model"], r["scale"], r["block_size"]) == (model, scale, block_size)
    )
    return found


@pytest.mark.parametrize(
    ("model", "block_size", "step", "step_ratio", "memory_ratio"),
    [
        ("AR SFT", None, 0.5, 1.0, 1.0),  # steps of 0.4, 0.5, 2.0
        ("MARS", 4, 0.7, 1.5, 1.3),  # ratios of 1.5, 1.4, 1.6
        ("MARS", 16, 0.8, 1.7, 1.4),  # 2.0, 1.5, 1.7
        (AR_RELEASED, "–", 0.55, 1.0, 1.0),
        (RELEASED, 4, 1.1, 2.0, 2.0),  # of AR SFT as released: 2.0, 2.0, 2.2
    ],
)
def test_ratios_are_the_ones_worked_out_by_hand(
    table, model, block_size, step, step_ratio, memory_ratio
):
    mine = row(table, model, block_size=block_size)
    assert mine["step"].value == pytest.approx(step)
    assert mine["step_ratio"].value == pytest.approx(step_ratio)
    assert mine["memory_ratio"].value == pytest.approx(memory_ratio)


def test_the_spread_of_a_ratio_is_that_of_its_repeats(table):
    assert row(table, "MARS", block_size=4)["step_ratio"].sd == pytest.approx(0.1)


def test_mfu_is_a_share_of_the_measured_ceiling(study, partial):
    found = row(measured(study, partial, peak="50"), "MARS", block_size=4)["mfu"]
    assert found.value == pytest.approx(100 * 10 / 1.4 / 50)  # per cent; 1.2, 1.4 and 6.4 s


def test_an_older_file_has_no_mfu(table):
    mine = row(table, "MARS", block_size=4)
    assert mine["gflops"].value == pytest.approx(10 / 1.4)
    assert mine["mfu"] is None


def test_ours_and_released_stand_beside_the_papers_ratios(table):
    facts = paper.facts()["training_overhead"]
    assert facts == {"step_time_vs_sft": [2.0, 2.2], "peak_memory_vs_sft": 1.5}
    for model in ("MARS", RELEASED):
        mine = row(table, model, block_size=4)
        assert (mine["paper_step"], mine["paper_memory"]) == ("2.0–2.2", "1.5")
    assert "paper_step" not in row(table, "AR SFT")


def test_what_was_not_measured_is_empty_and_the_runs_keep_their_columns(table):
    for mine in (row(table, "MARS", block_size=8), row(table, "MARS", "toy-s", 4)):
        assert mine["step"] is mine["step_ratio"] is mine["memory_ratio"] is None
        assert mine["tokens_ratio"] == pytest.approx(98 / 70)
        assert mine["examples"] == 12_000
    assert "examples" not in row(table, RELEASED, block_size=4)
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert float(rows[-1]["Step time ÷ AR SFT"]) == pytest.approx(2.0)
    assert "± " in table.markdown()
    assert any("64" in note or "32 conversations" in note for note in table.notes)


def test_without_a_cost_study_the_runs_say_what_a_step_took(study, results):
    raw = study.model_dump(mode="json") | {"training_cost": None}
    without = parse_study(raw)
    assert load_training_cost(without, results).empty
    table = build("training_overhead", without, results)
    mine = row(table, "MARS", block_size=4)
    assert mine["step_ratio"] == pytest.approx(1.5)  # 0.45 s and 0.3 s
    assert mine["memory_ratio"] == pytest.approx(900 / 700)
    assert "Tokens/s" not in [column.title for column in table.columns]
    assert not [r for r in table.sections[0].rows if r["model"] == RELEASED]


def test_the_notes_say_what_was_trained_on(study, results):
    table = build("training_overhead", study, results)
    assert any("AdamW on 32 conversations in one forward" in note for note in table.notes)
    raw = study.model_dump(mode="json")
    raw["training_cost"] |= {"drawn": {"tokens": 512, "response_share": 0.6}}
    table = build("training_overhead", parse_study(raw), results)
    said = "32 random conversations of 512 tokens (60% of them the response)"
    assert any(said in note for note in table.notes)


def test_the_loader_has_its_documented_columns(study, results):
    found = load_training_cost(study, results)
    assert isinstance(found, pd.DataFrame)
    assert list(found) == list(TRAINING_COST_COLUMNS)
    assert set(found["method"]) == {"ar_sft", "mars", "ar_released", "released"}
