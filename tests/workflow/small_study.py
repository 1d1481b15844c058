"""A study of one trained variant, for clusters that are stood in: its jobs and what they make."""

from __future__ import annotations

import re
from typing import Any

import yaml

from .conftest import Checkout

STUDY: dict[str, Any] = {
    "study": "small",
    "scales": {"toy-s": {"base": "embedded:toy-s"}},
    "variants": {
        "base": {},
        "ar_sft": {"objective": "ar_sft", "parent": "base", "stages": [1]},
    },
    "training": {"threads": 3},
    "evaluation": {
        "benchmarks": {"toy_gsm8k": {"column": "GSM8K", "metric": "exact_match,strict-match"}},
        "processes": 2,
        "gpus_per_process": 3,
        "threads": 2,
        "panels": [],
        "sweep": "none",
    },
}
TARGETS = [f"results/small/tables/{name}.csv" for name in ("table2", "chance")]


def write_study(made: Checkout) -> list[str]:
    """Write the study into a checkout; returns the words that choose it."""
    (made.folder / "config" / "small.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return ["--configfile", "config/small.yaml"]


def files_of_jobs(made: Checkout) -> dict[str, list[str]]:
    """Job → the files it makes, as a dry run lists them: "train", "evaluate base", "table", …"""
    done = made.run("snakemake", "-n", "--cores", "8", *write_study(made), "--", *TARGETS)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[tuple[str, list[str]]] = []
    for line in done.stdout.splitlines() + done.stderr.splitlines():
        if rule := re.match(r" *rule (\w+):$", line):
            jobs.append((rule[1], []))
        elif files := re.match(r" +(?:output|benchmark): (.+)", line):
            jobs[-1][1].extend(re.sub("/model$", "/model/weights", f) for f in files[1].split(", "))
        elif variant := re.match(r" +wildcards: .*variant=(\w+)", line):
            jobs[-1] = (f"{jobs[-1][0]} {variant[1]}", jobs[-1][1])
    found: dict[str, list[str]] = {}
    for job, made_files in jobs:
        found.setdefault(job, []).extend(made_files)
    return found


BIG = ("train", "evaluate")


def small_files(files: dict[str, list[str]]) -> list[str]:
    """Of ``files_of_jobs`` those of all jobs without a model: one submission makes them."""
    return [path for job, made in files.items() if not job.startswith(BIG) for path in made]
