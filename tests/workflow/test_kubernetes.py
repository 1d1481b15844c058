"""What the Kubernetes profile submits: the manifests of its plugin, of a cluster stood in."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from .small_study import TARGETS, files_of_jobs, small_files, write_study

CLAIM = "study-claim"


@pytest.fixture(scope="module")
def pods(make_checkout, tmp_path_factory):
    """Rule or group → manifests, of one run of the workflow."""
    made = make_checkout()
    choice, files = write_study(made), files_of_jobs(made)
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
        asked = words[words.index("--target-jobs") + 1]
        rule = asked.split(":")[0]
        found[rule if rule in found else "small"].append(job)
    return found


def container_of(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "gpus", "cores", "memory"), [
    ("train", "1", "8000m", "64000M"),
    ("evaluate", "2", "4000m", "32000M"),
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
