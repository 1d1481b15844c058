"""`mars results`: what it shows, what its filters leave, and what it says where nothing is."""

from __future__ import annotations

import json
import re

import pytest

from mars.analysis.summary import summarise
from mars.cli import main
from mars.config import load_study

from . import synthetic


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini")
    study = load_study(synthetic.ROOT / "tests" / "mini.yaml")
    synthetic.make_results(folder, study, documents=12)
    (folder / "config.yaml").write_text((synthetic.ROOT / "tests/mini.yaml").read_text("utf-8"))
    return study, folder


@pytest.fixture
def ask(mini, capsys):
    def run(*words, status=0):
        assert main(["results", str(mini[1]), *words]) == status
        said = capsys.readouterr()
        return said.out if status == 0 else said.err

    return run


def test_every_run_and_threshold_is_a_row(mini, ask):
    study, folder = mini
    told = json.loads(ask("--json"))
    rows = told["sections"][0]["rows"]
    assert {row["variant"] for row in rows} == set(study.variants)
    found = [row for row in rows if row["variant"] == "mars_b4"]
    assert [row["tau"] for row in found] == [1.0, 0.95, 0.9, 0.5]
    summary = summarise(study, folder)
    at = summary.decoding("mars_b4", "toy_gsm8k", 0.5)
    score = summary.score("toy-s", "mars_b4", "toy_gsm8k", at)
    assert found[3]["toy_gsm8k"]["value"] == score.value
    assert found[3]["toy_bbh"] is None  # not swept there, and so not 0
    assert found[3]["Avg"] is None


def test_filters_leave_only_what_they_name(mini, ask):
    told = json.loads(ask("--json", "--variant", "mars_b4", "--benchmark", "toy_gsm8k"))
    (row, *_) = rows = told["sections"][0]["rows"]
    assert {row["variant"] for row in rows} == {"mars_b4"}
    assert set(row) == {"scale", "variant", "tau", "toy_gsm8k", "tokens_per_forward:toy_gsm8k"}
    assert rows[1]["tokens_per_forward:toy_gsm8k"]["value"] > 1.2

    told = json.loads(ask("--json", "--table", "table2", "--variant", "mars_b4"))
    for section in told["sections"]:
        assert {(r["model"], r["block_size"]) for r in section["rows"]} == {("MARS", 4)}
    assert {r["source"] for r in told["sections"][0]["rows"]} == {"ours", "paper"}
    told = json.loads(ask("--json", "--table", "glance", "--scale", "toy-s"))
    assert {row["scale"] for row in told["sections"][0]["rows"]} == {"toy-s", "0.5B"}


def test_the_table_is_drawn_as_people_read_it(ask):
    text = ask("--table", "table2")
    assert re.search(r"toy-s +MARS +4 +one-token +ours( +\d+\.\d){6} +\d+\.\d \[", text)
    assert "Difference from AR SFT (points)" in text
    assert "missing" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--table", "tabl"], "--table: unknown 'tabl'; choose from scores, "),
        (["--scale", "7B"], "--scale: unknown '7B'; choose from toy-s"),
        (["--variant", "x"], "--variant: unknown 'x'; choose from base, "),
        (["--benchmark", "x"], "--benchmark: unknown 'x'; choose from toy_ifeval, "),
        (["--table", "table5", "--scale", "toy-s"], "table5 does not tell them apart; leave it"),
        (["--table", "table5", "--variant", "mars_b4"], "table5 has no row of mars_b4"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(ask, words, said):
    text = ask(*words, status=2)
    assert said in text
    assert text.count("\n") == 1


def test_where_there_are_no_results_it_says_what_makes_them(mini, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "mini"]) == 2
    assert "make them with `snakemake" in capsys.readouterr().err

    begun = tmp_path / "results" / "mini"
    begun.mkdir(parents=True)
    (begun / "config.yaml").write_text((mini[1] / "config.yaml").read_text("utf-8"))
    assert main(["results", "mini"]) == 0
    said = capsys.readouterr().out
    assert "nothing to show" in said
    assert "snakemake --cores 8 " in said
    assert re.search(r"\d+ results are missing", said)
