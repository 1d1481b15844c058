"""A study that cannot run says so before any work: one line with file, key and remedy."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from .conftest import copy_to

CASES = {
    "a wrong key": ({"trainig": {}}, "trainig", "did you mean 'training'"),
    "a wrong value": ({"training": {"epochs": 0}}, "training.epochs", "greater than"),
    "an unknown objective": (
        {"variants": {"mars_b4": {"objective": "marz"}}},
        "variants.mars_b4.objective",
        "did you mean 'mars'",
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
        {"scales": {"toy-s": {"base": "./models/none"}}},
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


def half_a_base(made):
    weights = made.folder / "mars/embedded/checkpoints/toy-s/model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return {}


def a_row_without_a_response(made):
    answer = {"role": "assistant", "content": "sum"}
    asked = [{"role": "user", "content": f"add {i}"} for i in range(96)]
    rows = [{"messages": [prompt, answer]} for prompt in asked[:95]] + [{"messages": asked[95:]}]
    (made.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": {"source": "rows.jsonl"}}


def a_row_with_an_empty_prompt(made):
    told = [{"role": "user", "content": " "}, {"role": "assistant", "content": "sum"}]
    (made.folder / "rows.jsonl").write_text((json.dumps({"messages": told}) + "\n") * 96)
    return {"data": {"source": "rows.jsonl"}}


def an_unknown_metric(made):
    return {"evaluation": {"benchmarks": {"toy_gsm8k": {"metric": "exact_match,strict"}}}}


def a_benchmark_that_is_no_task(made):
    made_up = {"column": "GSM8K", "metric": "exact_match,strict-match"}
    return {"evaluation": {"benchmarks": {"toy_gsm9k": made_up}}}


def a_budget_beyond_the_context(made):
    return {"evaluation": {"max_new_tokens": 250}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (half_a_base, "scales.toy-s.base: .*model.safetensors: half-written, .*mars pretrain"),
        (
            a_row_without_a_response,
            "data.source: rows.jsonl: stage 2 .* has 95 .*line 96: no re",
        ),
        (
            a_row_with_an_empty_prompt,
            "data.source: .*96 empty prompt, first: rows.jsonl, line 1: ",
        ),
        (an_unknown_metric, "toy_gsm8k.metric: .*did you mean 'exact_match,strict-match'"),
        (a_benchmark_that_is_no_task, "toy_gsm9k: no such lm-eval task; did you mean 'toy_gsm8k'"),
        (a_budget_beyond_the_context, r"toy_\w+, document \d+: .* lower evaluation.max_new_tokens"),
    ],
)
def test_what_only_the_files_tell_ends_the_workflow_before_any_job(tmp_path, wrong, said):
    made = copy_to(tmp_path)
    settings = yaml.safe_load((made.folder / "tests/mini.yaml").read_text(encoding="utf-8"))
    file = made.folder / "config" / "wrong.yaml"
    file.write_text(yaml.safe_dump(laid_over(settings, wrong(made))), encoding="utf-8")
    done = made.run("snakemake", "--cores", "1", "--configfile", str(file), "--", "all")
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "config/wrong.yaml: " in line]
    assert len(lines) == 1, done.stdout + done.stderr
    assert re.match(f"config/wrong.yaml: .*{said}", lines[0]), lines[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert not (made.folder / "results/mini/seed0").exists()
