"""The studies of real models: their dry runs need no network, no weights and no GPU."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mars import jobs

from .planned import counted, planned
from .test_dag import LARGE, SMALL

pytestmark = pytest.mark.slow

RELEASED = {
    "0.5B": "ar_sft block_diffusion_b4 mars_no_sft_b4 mars_no_sft_b8 mars_no_sft_b16 mars_b4 "
    "mars_b8 mars_b16",
    "7B": "ar_sft mars_b4 mars_b8 mars_b16",
}
OF_TRAINING = ("training_overhead", "signal_fraction", "loss_curves")


RUNS = ("train ", "evaluate ", "throughput ", "arrivals ", "training_cost ")


@pytest.fixture(scope="module")
def presented(untouched) -> Callable[[str], set[str]]:
    """Of a study, tables, figures and the report: the embedded study's, which has all of them."""
    shown = {job for job in untouched.jobs() if not job.startswith(RUNS)}
    return lambda study: {job.replace("/embedded/", f"/{study}/") for job in shown}


def runs(study: str, trained: dict[str, str], evaluated: dict[str, str]) -> set[str]:
    folder = f"results/{study}/seed0"
    jobs = {f"{timed} {folder}/{timed}.csv" for timed in ("throughput", "arrivals")}
    jobs |= {f"train {folder}/{s}/{v}/model" for s, names in trained.items() for v in names.split()}
    for scale, names in evaluated.items():
        jobs |= {f"evaluate {folder}/{scale}/{v}/evaluation.csv" for v in f"base {names}".split()}
    return jobs | ({f"training_cost {folder}/training_cost.csv"} if trained else set())


@pytest.mark.parametrize(
    ("study", "trained"),
    [("paper", {"0.5B": SMALL, "7B": LARGE}), ("smollm2", {"smollm2-135m": SMALL})],
)
def test_a_study_of_real_models_lists_its_jobs(untouched, presented, study, trained):
    jobs = untouched.jobs("--configfile", f"config/{study}.yaml")
    assert jobs == runs(study, trained, trained) | presented(study)
    counts = {"paper": (14, 16), "smollm2": (10, 11)}[study]
    assert tuple(sum(job.startswith(r) for job in jobs) for r in ("train ", "evaluate ")) == counts
    assert planned(f"config/{study}.yaml") == counted(jobs)


def test_a_study_without_measurements_lists_none(untouched, presented):
    jobs = untouched.jobs("--configfile", "config/smollm2_small.yaml")
    trained = {"smollm2-135m": "ar_sft mars_b4"}
    expected = runs("smollm2_small", trained, trained)
    assert {job for job in jobs if job.startswith(RUNS)} == {
        job for job in expected if job.startswith(("train ", "evaluate "))
    }
    shown = jobs - expected
    assert shown < presented("smollm2_small")
    told = " ".join(shown)
    assert re.search("table2", told)
    assert not re.search("table5|figure_wall_clock|roofline|arrivals|profile", told)
    assert planned("config/smollm2_small.yaml") == counted(jobs)


def test_released_checkpoints_train_nothing(untouched, presented):
    chosen = ("--configfile", "config/paper.yaml", "--config", "checkpoints=released")
    jobs = untouched.jobs(*chosen)
    shown = {job for job in presented("paper") if not re.search("|".join(OF_TRAINING), job)}
    assert jobs == runs("paper", {}, RELEASED) | shown
    assert sum(job.startswith("evaluate ") for job in jobs) == 14
    assert planned("config/paper.yaml", checkpoints="released") == counted(jobs)


def test_jobs_are_told_what_is_released_and_take_the_folder_where_it_is(untouched):
    name, elsewhere = (f"Xalphinions/MARS-Qwen2.5-7B-blk{size}" for size in (4, 8))
    folder = untouched.folder / "here" / "models" / name
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(20 * 10**9)  # larger than its bases, by their names
    (test := untouched.folder / "here" / "gsm8k" / "main" / "test.jsonl").parent.mkdir(parents=True)
    test.touch()
    chosen = ("-n", "-p", "--cores", "2", "--configfile", "config/paper.yaml", "--config")
    told = untouched.run("snakemake", *chosen, "checkpoints=released", "data_root=here").stdout
    assert f"--variant mars_b4 --checkpoint here/models/{name} " in told
    assert f"here/models/{name}/model.safetensors" in told  # an input of its evaluation
    evaluated = [line for line in told.splitlines() if "here/gsm8k/main/test.jsonl" in line]
    assert len(evaluated) == 14  # a file that was repaired has every run evaluated again
    assert f"--variant mars_b8 --checkpoint {elsewhere} " in told
    assert "trust_remote_code" not in told
    each = 4 if jobs.gpu_count() else 9
    assert f"mem_mb={700 + each * 20_000}" in told  # so that no more run than the memory bears
