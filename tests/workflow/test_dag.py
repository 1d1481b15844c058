"""The dry run lists exactly the jobs that a study calls for, written out here by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .planned import counted, planned

SMALL = "ar_sft ar_sft_10ep block_diffusion_b4 mars_no_sft_b4 mars_no_sft_b8 mars_no_sft_b16"
SMALL += " mars_no_sft_stream_b4 mars_b4 mars_b8 mars_b16"
LARGE = "ar_sft mars_b4 mars_b8 mars_b16"
QUICK = "ar_sft mars_b4 mars_b16 mars_no_sft_b4 mars_no_sft_b16"

TABLES = "claims glance table2 table3 table4 training_overhead chance calibration"
FIGURES = "frontier score_tau tokens_per_forward accepted_counts spans reliability signal_fraction"
FIGURES += " loss_curves"
NOTEBOOKS = "01_frontier 02_block_size_and_sft_loss 03_wall_clock 04_confidence 05_compare_variant"
TIMED = "table5 roofline profile replay batching arrivals"

STUDIES: dict[str, Any] = {
    "embedded": {
        "trained": {"toy-s": SMALL.split(), "toy-m": LARGE.split()},
        "tables": [*TABLES.split(), *TIMED.split(), "jacobi", "acceptance"],
        "figures": [*FIGURES.split(), "wall_clock", "arrivals"],
        "timed": True,
        "counts": {"train": 14, "evaluate": 16, "throughput": 1, "training_cost": 1},
    },
    "quick": {
        "trained": {"toy-s": QUICK.split()},
        "tables": TABLES.split(),
        "figures": FIGURES.split(),
        "timed": False,
        "counts": {"train": 5, "evaluate": 6, "throughput": 0, "training_cost": 0},
    },
    "mini": {
        "trained": {"toy-s": ["ar_sft", "block_diffusion_b4", "mars_no_sft_b4", "mars_b4"]},
        "tables": [*TABLES.split(), *TIMED.split(), "jacobi", "acceptance"],
        "figures": [*FIGURES.split(), "wall_clock", "arrivals"],
        "timed": True,
        "counts": {"train": 4, "evaluate": 5, "throughput": 1, "training_cost": 1},
    },
}
FILES = {"embedded": [], "quick": ["config/quick.yaml"], "mini": ["tests/mini.yaml"]}


def expected(study: str, seeds: tuple[int, ...] = (0,)) -> set[str]:
    plan = STUDIES[study]
    results = f"results/{study}"
    jobs = {
        f"chance {results}/chance.csv",
        f"environment {results}/environment.json",
        f"report reports/{study}/index.html",
        f"tidy {results}/records.parquet",
    }
    for name in plan["tables"]:
        rule = "compared_table" if name in ("table2", "table3", "table4", "table5") else "table"
        jobs.add(f"{rule} {results}/tables/{name}.csv")
    jobs |= {f"figure_{name} figures/{study}/{name}.png" for name in plan["figures"]}
    jobs |= {f"notebook reports/{study}/notebooks/{name}.html" for name in NOTEBOOKS.split()}
    for seed in seeds:
        for scale, trained in plan["trained"].items():
            for variant in trained:
                jobs.add(f"train {results}/seed{seed}/{scale}/{variant}/model")
            for variant in ["base", *trained]:
                jobs.add(f"evaluate {results}/seed{seed}/{scale}/{variant}/evaluation.csv")
        if plan["timed"]:
            jobs.add(f"tidy_throughput {results}/throughput.parquet")
            jobs.add(f"throughput {results}/seed{seed}/throughput.csv")
            jobs.add(f"arrivals {results}/seed{seed}/arrivals.csv")
            jobs.add(f"training_cost {results}/seed{seed}/training_cost.csv")
    return jobs


@pytest.mark.parametrize("study", STUDIES)
def test_a_dry_run_lists_exactly_the_jobs_of_a_study(untouched, study):
    choice = [word for file in FILES[study] for word in ("--configfile", file)]
    jobs = untouched.jobs(*choice)
    assert jobs == expected(study)
    for rule, count in STUDIES[study]["counts"].items():
        assert sum(job.startswith(f"{rule} ") for job in jobs) == count, rule
    assert planned(*FILES[study] or ["config/embedded.yaml"]) == counted(jobs)


def test_another_study_replaces_the_default_whole(untouched):
    """Snakemake lays a --configfile over the default one, which would mix two studies."""
    jobs = untouched.jobs("--configfile", "config/quick.yaml")
    assert not [job for job in jobs if re.search("toy-m|throughput|training_cost", job)]


def test_two_seeds_are_one_setting(untouched):
    assert untouched.jobs("--config", "seeds=[0,1]") == expected("embedded", seeds=(0, 1))


def test_a_dry_run_writes_nothing(untouched):
    untouched.jobs()
    for name in ("results", "figures", "reports"):
        assert not (untouched.folder / name).exists()


def test_several_processes_are_launched_by_accelerate(untouched):
    dry = ("snakemake", "-n", "-p", "--cores", "2", "--config", "seeds=[0]")
    told = untouched.run(*dry, "training={processes: 2, threads: 1}").stdout
    assert "exec python -m mars train --config" not in told
    assert "exec accelerate launch --multi_gpu --num_processes 2" in told
    assert not re.search(r"resources: .*gpu=", told)
    assert "exec python -m mars train --config" in untouched.run(*dry).stdout


def test_where_there_are_gpus_a_job_counts_and_claims_one_a_process(untouched):
    """On a machine whose GPUs are given by name, since this one may have none."""
    dry = ("snakemake", "-n", "-p", "--cores", "2", "--config", "training={processes: 2}")
    told = untouched.run(*dry, "--until", "train", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b").stdout
    assert "exec python -m mars gpus 2 accelerate launch --multi_gpu --num_processes 2" in told
    assert set(re.findall(r"resources: .*gpu=(\d)", told)) == {"2"}


@pytest.mark.parametrize(("gpus", "slots"), [("0,1", "2"), ("", "6")])
def test_a_job_takes_a_slot_a_process_on_gpus_and_else_a_core(untouched, gpus, slots):
    """Slots are what memory holds: on GPUs a process, whatever its threads, is one."""
    dry = ("snakemake", "-n", "--cores", "16", "--resources", "slots=16", "--until", "train")
    changed = ("--config", "training={processes: 2, threads: 3}")
    told = untouched.run(*dry, *changed, CUDA_VISIBLE_DEVICES=gpus).stdout
    assert set(re.findall(r"resources: .*slots=(\d+)", told)) == {slots}


def test_a_further_attempt_asks_for_a_step_more_memory(untouched):
    """Most come after a time limit: eight processes times the attempts fit no node."""
    dry = ("snakemake", "-n", "--cores", "2", "--until", "train")
    changed = ("--config", "training={processes: 8}")
    asked = []
    for attempt in ("1", "2", "3"):
        told = untouched.run(*dry, "--attempt", attempt, *changed, CUDA_VISIBLE_DEVICES="0").stdout
        asked += set(re.findall(r"resources: .*mem_mb=(\d+)", told))
    assert asked == ["32000", "36000", "40000"]
