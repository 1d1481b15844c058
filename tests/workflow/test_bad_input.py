"""A study that cannot run says so before any work: one line with file, key and remedy."""

from __future__ import annotations

import pytest
import yaml

CASES = {
    "a wrong key": ({"trainig": {}}, "trainig", "did you mean 'training'"),
    "a wrong value": ({"training": {"epochs": 0}}, "training.epochs", "greater than"),
    "an unknown objective": (
        {"variants": {"mars_b4": {"objective": "marz"}}},
        "variants.mars_b4.objective",
        "choose from ar_sft, mars, block_diffusion",
    ),
    "an unknown benchmark": (
        {"evaluation": {"panels": ["toy_gsm9k"]}},
        "evaluation.panels",
        "did you mean 'toy_gsm8k'",
    ),
    "a missing base": (
        {"scales": {"toy-s": {"base": "embedded:toy-x"}}},
        "scales.toy-s.base",
        "mars pretrain toy-x",
    ),
    "a missing checkpoint folder": (
        {"scales": {"toy-s": {"base": "models/none"}}},
        "scales.toy-s.base",
        "check the path",
    ),
    "a missing data file": ({"data": {"source": "none.jsonl"}}, "data.source", "'embedded'"),
}


def laid_over(settings, change):
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            laid_over(settings[key], value)
        else:
            settings[key] = value
    return settings


@pytest.mark.parametrize("case", CASES)
def test_snakemake_says_what_is_wrong_in_one_line(untouched, tmp_path, case):
    change, key, remedy = CASES[case]
    settings = yaml.safe_load((untouched.folder / "tests/mini.yaml").read_text(encoding="utf-8"))
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(laid_over(settings, change)), encoding="utf-8")
    done = untouched.run("snakemake", "-n", "--cores", "1", "--configfile", str(file))
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("Using workflow")]
    assert len(said) == 1, done.stdout + done.stderr
    assert "wrong.yaml" in said[0]
    assert key in said[0]
    assert remedy in said[0]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("content", ["- a list\n", "a: [\n", None])
def test_what_is_no_study_file_fails(untouched, tmp_path, content):
    """Snakemake reads the file itself here, so the words are its own."""
    file = tmp_path / "wrong.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    done = untouched.run("snakemake", "-n", "--cores", "1", "--configfile", str(file))
    assert done.returncode != 0
    checked = untouched.run("mars", "config", str(file))
    assert checked.returncode == 2
    assert len(checked.stderr.splitlines()) == 1
    assert "wrong.yaml" in checked.stderr
