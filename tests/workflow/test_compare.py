"""Comparing a variant of one's own, before anything is made; and what is wrong with its file."""

from __future__ import annotations

import pytest
import yaml

HALF = ("--config", "variant=examples/half_ar_weight.yaml")
OWN = ("--config", "variant=examples/random_block.yaml")
RUN = "results/embedded/seed0/toy-s"


def test_baselines_that_are_missing_are_made_too(untouched):
    jobs = untouched.jobs(*HALF, target="compare")
    names = ("ar_sft", "mars_b4", "half_ar_weight")
    expected = {f"train {RUN}/{name}/model" for name in names}
    expected |= {f"evaluate {RUN}/{name}/evaluation.csv" for name in names}
    assert jobs == expected | {"compare reports/embedded/compare-half_ar_weight.html"}


def test_a_checkpoint_is_evaluated_as_it_is(untouched, tmp_path):
    file = tmp_path / "given.yaml"
    file.write_text(
        "variant: {checkpoint: 'embedded:toy-s', block_size: 4, scales: [toy-s]}\n"
        "baselines: [base]",
        encoding="utf-8",
    )
    jobs = untouched.jobs("--config", f"variant={file}", target="compare")
    assert jobs == {
        f"evaluate {RUN}/given/evaluation.csv",
        f"evaluate {RUN}/base/evaluation.csv",
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


# ---------------------------------------------------------------------- beside what was made


@pytest.fixture(scope="module")
def compared(make_checkout):
    """A checkout in which a comparison was made, its baselines and an objective of one's own."""
    made = make_checkout()
    for words in (HALF, OWN):
        done = made.run("snakemake", "--cores", "8", *words, "--", "compare")
        assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_a_comparison_that_is_made_runs_nothing(compared):
    assert compared.jobs(*HALF, target="compare") == set()
    assert compared.jobs(*OWN, target="compare") == set()


def test_another_variant_makes_just_what_is_missing(compared):
    """Neither the baselines nor the other variant are made again, and nothing for the study's."""
    text = "variant: {objective: mars, parent: ar_sft, stages: [2], block_size: 2, scales: [toy-s]}"
    (compared.folder / "config/mars_b2.yaml").write_text(text, encoding="utf-8")
    jobs = compared.jobs("--config", "variant=config/mars_b2.yaml", target="compare")
    assert jobs == {
        f"train {RUN}/mars_b2/model",
        f"evaluate {RUN}/mars_b2/evaluation.csv",
        "compare reports/embedded/compare-mars_b2.html",
    }


def test_the_study_takes_what_a_comparison_made_and_knows_nothing_of_the_variant(compared):
    for words in ((), OWN):
        jobs = compared.jobs(*words)
        for name in ("ar_sft", "mars_b4", "mars_b8", "random_block", "half_ar_weight"):
            assert not [job for job in jobs if f"toy-s/{name}/" in job]
        assert f"train {RUN}/mars_b16/model" in jobs


def test_its_jobs_read_a_configuration_of_their_own(compared):
    folder = compared.folder / "results/embedded"
    for name, config in (("random_block", "compare-random_block."), ("mars_b4", "")):
        asked = (folder / f"seed0/toy-s/{name}/training.csv").read_text(encoding="utf-8")
        assert f"--config results/embedded/{config}config.yaml " in asked
    own = yaml.safe_load((folder / "compare-random_block.config.yaml").read_text(encoding="utf-8"))
    plain = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert own.pop("plugins") == ["examples/random_block.py"]
    assert own["variants"].pop("random_block")["objective"] == "random_block"
    assert plain.pop("plugins") == []
    assert own == plain
    assert "random_block" not in plain["variants"]


def test_a_plugin_that_is_edited_reruns_its_own_variant(compared):
    file = compared.folder / "examples/random_block.py"
    before = file.read_bytes()
    compared.append("examples/random_block.py")
    try:
        assert compared.jobs(*HALF, target="compare") == set()
        assert compared.jobs(*OWN, target="compare") == {
            f"train {RUN}/random_block/model",
            f"evaluate {RUN}/random_block/evaluation.csv",
            "compare reports/embedded/compare-random_block.html",
        }
    finally:
        file.write_bytes(before)
