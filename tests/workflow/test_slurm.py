"""What the SLURM profile submits, and that a job stopped by its time limit goes on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from .conftest import STAND_IN
from .small_study import TARGETS, files_of_jobs, small_files, write_study

# Training that saves when it is told to end, and goes on from there.
TRAINS = """
import json, os, signal, sys, time
from pathlib import Path
import psutil

if sys.argv[1] == "train":
    given = dict(zip(sys.argv[2:], sys.argv[3:]))
    workflow = int(os.environ["MARS_WORKFLOW_PID"])
    with open("trained.jsonl", "a") as file:
        seen = {"workflow": workflow, "alive": psutil.pid_exists(workflow)}
        file.write(json.dumps(seen | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}) + "\\n")
    saved = Path(given["--out"], "trainer", "saved")
    def save(*_):
        saved.parent.mkdir(parents=True)
        saved.touch()
        sys.exit(143)
    if not saved.exists():
        signal.signal(signal.SIGTERM, save)
        Path("train.started").touch()
        time.sleep(300)
        sys.exit("nobody said that the time is up")
"""


@pytest.fixture(scope="module")
def cluster(make_checkout, tmp_path_factory):
    """A checkout, and what Snakemake submitted there to a cluster that stops training once."""
    made = make_checkout()
    main = made.folder / "mars" / "__main__.py"
    main.write_text(TRAINS + STAND_IN, encoding="utf-8")
    choice, files = write_study(made), files_of_jobs(made)
    home, commands = tmp_path_factory.mktemp("slurm"), tmp_path_factory.mktemp("bin")
    fake = Path(__file__).with_name("fake_slurm.py").read_text(encoding="utf-8")
    for name in ("sbatch", "srun", "sacct", "sacctmgr", "sinfo", "scontrol"):
        (commands / name).write_text(f"#!{sys.executable}\n{fake}", encoding="utf-8")
        (commands / name).chmod(0o755)
    makes = {
        f"rule_evaluate_wildcards_0_toy-s_{name}": files[f"evaluate {name}"]
        for name in ("base", "ar_sft")
    }
    makes["rule_presentation"] = small_files(files)
    environment = {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "FAKE_SLURM": str(home),
        "FAKE_SLURM_MAKES": json.dumps(makes),
        "FAKE_SLURM_STOPS": "train",
    }
    quick = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20"]
    words = ["--profile", "profiles/slurm", *choice, *quick, "--", *TARGETS]
    done = made.run("snakemake", *words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (home / "submitted.jsonl").read_text(encoding="utf-8").splitlines()
    return made, home, [json.loads(line) for line in lines], done


def of(submitted, job):
    return [asked for asked in submitted if asked["comment"].startswith(f"rule_{job}")]


@pytest.mark.slow
def test_each_job_asks_for_its_gpus_memory_time_and_cores(cluster):
    _, _, submitted, _ = cluster
    first, second = of(submitted, "train")  # the second after the time limit
    assert {"--gpus=1", "--cpus-per-task=8", "--signal=TERM@120"} <= set(first["rest"])
    assert (first["mem"], first["t"]) == ("64000", "1440")
    assert second["mem"] == "128000"
    for asked in of(submitted, "evaluate"):
        assert {"--gpus=2", "--cpus-per-task=4", "--signal=TERM@120"} <= set(asked["rest"])
        assert (asked["mem"], asked["t"]) == ("32000", "1440")


@pytest.mark.slow
def test_small_jobs_are_one_submission_without_a_gpu(cluster):
    _, _, submitted, _ = cluster
    (asked,) = of(submitted, "presentation")
    assert "table2" in asked["wrap"]
    assert "chance" in asked["wrap"]
    assert not [word for word in asked["rest"] if "gpu" in word]
    assert len(submitted) == 5


@pytest.mark.slow
def test_a_job_stopped_by_its_time_limit_saves_and_the_next_attempt_goes_on(cluster):
    made, home, submitted, _ = cluster
    states = [(home / f"{one['number']}.state").read_text() for one in of(submitted, "train")]
    assert states == ["TIMEOUT", "COMPLETED"]
    run = made.folder / "results/small/seed0/toy-s/ar_sft"
    assert (run / "trainer/saved").exists()
    assert (run / "model/model.safetensors").exists()


@pytest.mark.slow
def test_on_a_node_a_job_watches_the_snakemake_of_that_node(cluster):
    """The one that submitted runs on another machine, where its number means nothing."""
    made, home, _, _ = cluster
    lines = (made.folder / "trained.jsonl").read_text(encoding="utf-8").splitlines()
    seen = [json.loads(line) for line in lines]
    assert len({one["workflow"] for one in seen}) == 2
    assert all(one["alive"] for one in seen)
    assert [one["gpus"] for one in seen] == ["0", "0"]
    steps = (home / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    assert all("--gpus=1" in json.loads(step) for step in steps)
