"""Comparing a variant of one's own, before anything is made; and what is wrong with its file."""

from __future__ import annotations

import pytest


def test_baselines_that_are_missing_are_made_too(untouched):
    jobs = untouched.jobs("--config", "variant=examples/half_ar_weight.yaml", target="compare")
    run = "results/embedded/seed0/toy-s"
    names = ("ar_sft", "mars_b4", "half_ar_weight")
    expected = {f"train {run}/{name}/model" for name in names}
    expected |= {f"evaluate {run}/{name}/evaluation.csv" for name in names}
    assert jobs == expected | {"compare reports/embedded/compare-half_ar_weight.html"}


def test_a_checkpoint_is_evaluated_as_it_is(untouched, tmp_path):
    file = tmp_path / "given.yaml"
    file.write_text(
        "variant: {checkpoint: 'embedded:toy-s', block_size: 4, scales: [toy-s]}\n"
        "baselines: [base]",
        encoding="utf-8",
    )
    jobs = untouched.jobs("--config", f"variant={file}", target="compare")
    run = "results/embedded/seed0/toy-s"
    assert jobs == {
        f"evaluate {run}/given/evaluation.csv",
        f"evaluate {run}/base/evaluation.csv",
        "compare reports/embedded/compare-given.html",
    }


def test_without_a_variant_it_says_what_to_name(untouched):
    done = untouched.run("snakemake", "-n", "--cores", "1", "--", "compare")
    assert done.returncode != 0
    assert "compare: name the file of your variant" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


WRONG = {
    "a study": ("study: x", "this is a whole study"),
    "no settings": ("margin: 1", "variant is missing"),
    "a wrong key": ("variant: {}\nbaseline: [ar_sft]", "baseline: unknown key; did you mean 'ba"),
    "a setting that is wrong": (
        "variant: {objective: mars, parent: ar_sft, stages: [2]}",
        "variants.mine.block_size is 1",
    ),
    "a name that is taken": (
        "name: mars_b4\nvariant: {objective: ar_sft, parent: base, stages: [1]}",
        "name: the study has another variant 'mars_b4'",
    ),
    "a baseline that is not there": (
        "variant: {objective: ar_sft, parent: base, stages: [1]}\nbaselines: [ar_sfd]",
        "baselines.0: unknown 'ar_sfd'; did you mean 'ar_sft'?",
    ),
    "a baseline at another scale": (
        "variant: {objective: ar_sft, parent: base, stages: [1]}\nbaselines: [ar_sft_10ep]",
        "baselines: none is made at 'toy-m'",
    ),
    "a plug-in that is not there": (
        "plugins: [x.py]\nvariant: {objective: ar_sft, parent: base, stages: [1]}",
        "plugins: x.py: no such file",
    ),
    "a checkpoint that is trained": (
        "variant: {checkpoint: somewhere, objective: mars, scales: [toy-s]}",
        "variants.mine.objective: its checkpoint is evaluated as it is",
    ),
    "a checkpoint of every scale": (
        "variant: {checkpoint: somewhere}",
        "variants.mine.scales: a checkpoint is of one scale",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_it_is_one_line(case, tmp_path):
    """As the workflow reads it, without starting one for each."""
    from mars.config import ConfigError, load_comparison, load_study, with_variant
    from mars.plugins import PluginError, resolve_plugins

    from .conftest import ROOT

    text, said = WRONG[case]
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    study = load_study(ROOT / "config/embedded.yaml")

    def read():
        joined = with_variant(study, load_comparison(file), str(file))
        return resolve_plugins(joined, [tmp_path], str(file))

    with pytest.raises((ConfigError, PluginError)) as caught:
        read()
    line = str(caught.value)
    assert line.startswith(str(file))
    assert said in line
    assert "\n" not in line


def test_the_workflow_says_it_in_one_line_too(untouched, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("variant: {objective: marz, parent: ar_sft, stages: [2]}", encoding="utf-8")
    done = untouched.run(
        "snakemake", "-n", "--cores", "1", "--config", f"variant={file}", "--", "compare"
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("Using workflow")]
    assert said == [f"{file}: variants.mine.objective: unknown 'marz'; did you mean 'mars'?"]
