"""What accelerate's configuration asks for is checked before any work, where a study trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mars import cli
from mars.config import ConfigError, Study, load_study, parse_study
from mars.evaluation import check
from mars.evaluation.check import check_launcher

ROOT = Path(__file__).resolve().parents[1]
ZERO = "config/accelerate/eight_gpus_zero2.yaml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda _: None)


def study(accelerate: str | None, **changes: object) -> Study:
    raw = yaml.safe_load((ROOT / "config/paper.yaml").read_text(encoding="utf-8"))
    return parse_study(raw | {"training": raw["training"] | {"accelerate": accelerate}} | changes)


def test_the_papers_study_needs_no_package_of_its_own(no_extra):
    assert check_launcher(load_study(ROOT / "config/paper.yaml"), "paper.yaml") == [
        "training.accelerate: FSDP"
    ]
    assert check_launcher(study(None), "paper.yaml") == []


def test_zero_needs_deepspeed(no_extra, monkeypatch):
    with pytest.raises(ConfigError) as error:
        check_launcher(study(ZERO), "paper.yaml")
    said = str(error.value)
    assert said.startswith(f"paper.yaml: training.accelerate: {ZERO}: needs the package deepspeed")
    assert "pip install deepspeed" in said
    assert "\n" not in said
    assert check_launcher(study(ZERO, checkpoints="released"), "paper.yaml") == []
    monkeypatch.setattr(check, "find_spec", lambda name: name)
    assert check_launcher(study(ZERO), "paper.yaml") == ["training.accelerate: DEEPSPEED"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory; check the path"),
        ("num_processes: 8", "no configuration of accelerate"),
        ("a: [", "no configuration of accelerate"),
        ("FSDP", "no configuration of accelerate"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, said):
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as error:
        check_launcher(study(str(file)), "paper.yaml")
    assert str(error.value).startswith(f"paper.yaml: training.accelerate: {file}: {said}")
    assert "\n" not in str(error.value)


def test_mars_check_asks_first(no_extra, tmp_path, capsys):
    raw = yaml.safe_load((ROOT / "config/quick.yaml").read_text(encoding="utf-8"))
    raw["training"] |= {"accelerate": ZERO, "processes": 2}
    raw["scales"] = {scale: {"base": "nowhere/at-all"} for scale in raw["scales"]}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(raw))
    assert cli.main(["check", "--config", str(file), "--out", str(tmp_path / "checked.txt")]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"{file}: training.accelerate: {ZERO}: needs the package deepspeed" in said
    assert not (tmp_path / "checked.txt").exists()
