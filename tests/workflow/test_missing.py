"""The command printed beside a missing result: it plans that result, as the study was run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from mars.analysis.compare.page import write_comparison
from mars.analysis.missing import Missing, missing
from mars.config import dump_study, load_comparison, load_study, parse_study, with_variant

from .conftest import ROOT


@pytest.fixture(scope="module")
def begun(make_checkout):
    """A checkout in which studies may have begun: only their configurations are there."""
    return make_checkout()


def gaps(begun: Any, monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]) -> list[Missing]:
    """What a study that has just begun lacks, as told from the repository root."""
    monkeypatch.chdir(begun.folder)
    study = parse_study(raw)
    results = Path("results", study.study)
    results.mkdir(parents=True, exist_ok=True)
    (results / "config.yaml").write_text(dump_study(study), encoding="utf-8")
    return missing(study, results)


def planned(begun: Any, command: str) -> str:
    program, *words = shlex.split(command)
    done = begun.run(program, "-n", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_of_the_default_study_it_is_the_bare_command(begun, monkeypatch):
    raw = load_study(ROOT / "config/embedded.yaml").model_dump(mode="json")
    first = gaps(begun, monkeypatch, raw)[0]
    assert first.command == f"snakemake --cores 8 {first.targets[0]}"
    assert "rule evaluate:" in planned(begun, first.command)


def test_of_released_checkpoints_it_trains_nothing(begun, monkeypatch):
    """Its own file would train them: what --config changed is in the resolved file alone."""
    raw = yaml.safe_load((ROOT / "config/paper.yaml").read_text(encoding="utf-8"))
    found = gaps(begun, monkeypatch, raw | {"checkpoints": "released"})
    evaluation = next(gap for gap in found if gap.source == ("evaluation", "7B", "mars_b4"))
    assert evaluation.command.endswith("--configfile results/paper/config.yaml")
    told = planned(begun, evaluation.command)
    assert "output: results/paper/seed0/7B/mars_b4/evaluation.csv" in told
    assert "rule train:" not in told
    own = next(gap for gap in found if "study of its own" in gap.what)
    assert "output: results/paper_trained/seed0/0.5B/ar_sft_10ep/model" in planned(
        begun, own.command
    )


def test_of_a_comparison_it_makes_what_the_page_lacks(begun, monkeypatch, tmp_path):
    raw = load_study(ROOT / "config/embedded.yaml").model_dump(mode="json")
    gaps(begun, monkeypatch, raw)
    file = "examples/half_ar_weight.yaml"
    joined = with_variant(parse_study(raw), made := load_comparison(file), file)
    page = tmp_path / "x.html"
    write_comparison(joined, Path("results/embedded"), made.name, made.baselines, 2.0, page)
    [command] = re.findall("<code>(snakemake .*?)</code>", page.read_text(encoding="utf-8"))
    told = planned(begun, command.replace("FILE", file))
    assert "output: results/embedded/seed0/toy-s/half_ar_weight/evaluation.csv" in told
    assert "rule report:" not in told


def test_a_study_file_may_lie_anywhere(begun, monkeypatch):
    raw = yaml.safe_load((ROOT / "tests/mini.yaml").read_text(encoding="utf-8"))
    trained = gaps(begun, monkeypatch, raw | {"study": "elsewhere"})[1]
    assert trained.source == ("training", "toy-s", "ar_sft")
    assert "output: results/elsewhere/seed0/toy-s/ar_sft/model" in planned(begun, trained.command)
