"""What the profiles for clusters submit, and that a job stopped by its time limit goes on.

SLURM's commands and the client of Kubernetes are stood in; Snakemake and its plugins are not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROOT, STAND_IN
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
def files(make_checkout):
    """Job → the files it makes."""
    return files_of_jobs(make_checkout())


@pytest.fixture(scope="module")
def slurm(make_checkout, files, tmp_path_factory):
    """A checkout, and what Snakemake submitted there to a cluster that stops training once."""
    made = make_checkout()
    main = made.folder / "mars" / "__main__.py"
    main.write_text(TRAINS + STAND_IN, encoding="utf-8")
    choice = write_study(made)
    home = tmp_path_factory.mktemp("slurm")
    makes = {
        f"rule_evaluate_wildcards_0_toy-s_{name}": files[f"evaluate {name}"]
        for name in ("base", "ar_sft")
    }
    makes["rule_presentation"] = small_files(files)
    environment = slurm_commands(home) | {
        "FAKE_SLURM_MAKES": json.dumps(makes),
        "FAKE_SLURM_STOPS": "train",
    }
    words = ["--profile", "profiles/slurm", *choice, *QUICK, "--", *TARGETS]
    done = made.run("snakemake", *words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return made, home, submissions(home), done


QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20"]


def slurm_commands(home):
    """Environment of a cluster that is stood in and keeps its notes in ``home``."""
    commands = home / "bin"
    commands.mkdir()
    fake = Path(__file__).with_name("fake_slurm.py").read_text(encoding="utf-8")
    for name in ("sbatch", "srun", "sacct", "sacctmgr", "sinfo", "scontrol"):
        (commands / name).write_text(f"#!{sys.executable}\n{fake}", encoding="utf-8")
        (commands / name).chmod(0o755)
    return {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "FAKE_SLURM": str(home)}


def submissions(home):
    lines = (home / "submitted.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def of(submitted, job):
    return [asked for asked in submitted if asked["comment"].startswith(f"rule_{job}")]


@pytest.mark.slow
def test_each_job_asks_for_its_gpus_memory_time_and_cores(slurm):
    _, _, submitted, _ = slurm
    first, second = of(submitted, "train")  # the second after the time limit
    assert {"--gpus=1", "--cpus-per-task=3", "--signal=TERM@600"} <= set(first["rest"])
    assert (first["mem"], first["t"]) == ("4000", "1440")
    assert second["mem"] == "8000"
    for asked in of(submitted, "evaluate"):  # two processes, three GPUs each
        assert {"--gpus=6", "--nodes=1", "--cpus-per-task=4"} <= set(asked["rest"])
        assert (asked["mem"], asked["t"]) == ("8000", "1440")


@pytest.mark.slow
def test_training_asks_for_what_all_its_processes_need(make_checkout, files, tmp_path):
    """The paper's 7B: eight processes, each with the weights in float32 and four threads."""
    made, run = make_checkout(), "results/paper/seed0/7B/ar_sft"
    makes = [re.sub("results/small/seed0/toy-s/ar_sft", run, f) for f in files["train ar_sft"]]
    makes = [f.replace("small", "paper").replace("toy-s", "7B") for f in makes]
    environment = slurm_commands(tmp_path) | {
        "FAKE_SLURM_MAKES": json.dumps({"rule_train": makes}),
    }
    words = ["--profile", "profiles/slurm", "--configfile", "config/paper.yaml"]
    done = made.run("snakemake", *words, *QUICK, "--", f"{run}/training.csv", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (asked,) = submissions(tmp_path)
    assert {"--gpus=8", "--nodes=1", "--cpus-per-task=32"} <= set(asked["rest"])
    each = int(asked["mem"]) / 8
    assert 4 * 7.6e9 / 1e6 < each < 64_000  # MB: the weights fit, and a node of 512 GB is enough


@pytest.mark.slow
def test_small_jobs_are_one_submission_without_a_gpu(slurm):
    _, _, submitted, _ = slurm
    (asked,) = of(submitted, "presentation")
    assert "table2" in asked["wrap"]
    assert "chance" in asked["wrap"]
    assert not [word for word in asked["rest"] if "gpu" in word]
    assert len(submitted) == 5


@pytest.mark.slow
def test_a_job_stopped_by_its_time_limit_saves_and_the_next_attempt_goes_on(slurm):
    made, home, submitted, _ = slurm
    states = [(home / f"{one['number']}.state").read_text() for one in of(submitted, "train")]
    assert states == ["TIMEOUT", "COMPLETED"]
    run = made.folder / "results/small/seed0/toy-s/ar_sft"
    assert (run / "trainer/saved").exists()
    assert (run / "model/model.safetensors").exists()


@pytest.mark.slow
def test_on_a_node_a_job_watches_the_snakemake_of_that_node(slurm):
    """The one that submitted runs on another machine, where its number means nothing."""
    made, home, _, _ = slurm
    lines = (made.folder / "trained.jsonl").read_text(encoding="utf-8").splitlines()
    seen = [json.loads(line) for line in lines]
    assert len({one["workflow"] for one in seen}) == 2
    assert all(one["alive"] for one in seen)
    assert [one["gpus"] for one in seen] == ["0", "0"]
    steps = (home / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    assert all("--gpus=1" in json.loads(step) for step in steps)


# --- Kubernetes

CLAIM = "study-claim"


@pytest.fixture(scope="module")
def pods(make_checkout, files, tmp_path_factory):
    """Rule or group → manifests, of one run of the workflow."""
    made = make_checkout()
    choice = write_study(made)
    notes = tmp_path_factory.mktemp("kubernetes") / "jobs.jsonl"
    makes = {
        "train:seed=0,scale=toy-s,variant=ar_sft": files["train ar_sft"],
        "evaluate:seed=0,scale=toy-s,variant=base": files["evaluate base"],
        "evaluate:seed=0,scale=toy-s,variant=ar_sft": files["evaluate ar_sft"],
        "table:table=chance": small_files(files),
    }
    stands_in = Path(__file__).with_name("fake_kubernetes")
    environment = {
        "PYTHONPATH": f"{stands_in}{os.pathsep}workflow/plugins",
        "HF_HOME": "",
        "FAKE_KUBERNETES": str(notes),
        "FAKE_KUBERNETES_MAKES": json.dumps(makes),
    }
    words = ["--profile", "profiles/kubernetes", *choice]
    words += ["--kubernetes-volume-persistent-volumes", f"{CLAIM}:/mars"]
    words += ["--latency-wait", "20", "--seconds-between-status-checks", "1"]
    done = made.run("snakemake", *words, "--", *TARGETS, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[Any]] = {"train": [], "evaluate": [], "small": []}
    for line in notes.read_text(encoding="utf-8").splitlines():
        job = json.loads(line)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        words = shlex.split(container["args"][1])
        assert words[:3] == ["cd", str(made.folder), "&&"]
        cache = made.folder / "results" / ".cache" / "huggingface"  # on the volume
        assert words[3:6] == ["export", f"HF_HOME={cache}", "&&"]
        asked = words[words.index("--target-jobs") + 1]
        rule = asked.split(":")[0]
        found[rule if rule in found else "small"].append(job)
    return found


def container_of(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "gpus", "cores", "memory"), [
    ("train", "1", "3000m", "4000M"),
    ("evaluate", "6", "4000m", "8000M"),
])  # fmt: skip
def test_each_pod_asks_for_gpus_memory_and_cores(pods, rule, gpus, cores, memory):
    assert pods[rule]
    for job in pods[rule]:
        asked = container_of(job)["resources"]
        assert asked["limits"]["nvidia.com/gpu"] == asked["requests"]["nvidia.com/gpu"] == gpus
        assert (asked["limits"]["cpu"], asked["limits"]["memory"]) == (cores, memory)
        (toleration,) = job["spec"]["template"]["spec"]["tolerations"]
        assert toleration["key"] == "nvidia.com/gpu"


@pytest.mark.slow
def test_small_jobs_are_one_pod_without_a_gpu(pods):
    (job,) = pods["small"]
    assert "nvidia.com/gpu" not in container_of(job)["resources"]["limits"]
    assert "chance" in container_of(job)["args"][1]


@pytest.mark.slow
def test_pods_share_the_volume_and_copy_nothing(pods):
    for job in (job for jobs in pods.values() for job in jobs):
        container, spec = container_of(job), job["spec"]["template"]["spec"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts[CLAIM] == "/mars"
        claims = [volume.get("persistentVolumeClaim") for volume in spec["volumes"]]
        assert {"claimName": CLAIM} in claims
        assert "--default-storage-provider" not in container["args"][1]
        assert "--deploy-sources" not in container["args"][1]
        assert job["namespace"] == "default"


# --- both


@pytest.mark.parametrize("profile", ["slurm", "kubernetes"])
def test_a_profile_speaks_of_the_rules_that_use_a_model(profile):
    """Snakemake says nothing where a profile names a rule that is not there."""
    path = ROOT / "profiles" / profile / "config.yaml"
    made = yaml.safe_load(path.read_text(encoding="utf-8"))
    rules = [text.read_text(encoding="utf-8") for text in (ROOT / "workflow/rules").glob("*.smk")]
    asking = re.findall(r'\*\*NEEDS\["(\w+)"\]', "".join(rules))
    assert set(made["set-resources"]) == set(asking)
    grouped = re.findall(r'group:\s+"(\w+)"', "".join(rules))
    assert set(made["group-components"]) == set(grouped)
