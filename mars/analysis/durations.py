"""How long a study took: from Snakemake's benchmark files, else from the results themselves."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mars.analysis.parts import applies
from mars.analysis.results import (
    load_arrivals,
    load_evaluation,
    load_throughput,
    load_training_cost,
    training_costs,
)
from mars.config import Study


@dataclass(frozen=True)
class Durations:
    """Seconds by stage, their sum, and the time in which at least one job ran."""

    stages: dict[str, float]
    wall_clock: float | None
    peak_memory_mb: float | None
    source: str

    @property
    def total(self) -> float:
        """The sum over all jobs."""
        return sum(self.stages.values())


def durations(study: Study, results: Path) -> Durations | None:
    """What is known of a study's duration, or None."""
    return _from_benchmarks(study, results / "benchmarks") or _from_results(study, results)


def _from_benchmarks(study: Study, folder: Path) -> Durations | None:
    stages: dict[str, float] = {}
    spans: list[tuple[float, float]] = []
    memory: list[float] = []
    for path in sorted(folder.rglob("*.tsv")):
        if not _of_study(study, path.relative_to(folder).with_suffix("").parts):
            continue
        try:
            row = pd.read_csv(path, sep="\t").iloc[-1]
            seconds = float(row["s"])
        except (ValueError, KeyError, IndexError):
            continue  # a job that is being written, or too short for Snakemake to measure
        stage = re.split(r"[/_.]", path.relative_to(folder).as_posix())[0]
        stages[stage] = stages.get(stage, 0.0) + seconds
        end = path.stat().st_mtime
        spans.append((end - seconds, end))
        with contextlib.suppress(KeyError, ValueError):  # '-' where a job was too short
            memory.append(float(row["max_rss"]))
    if not stages:
        return None
    return Durations(stages, union(spans), max(memory, default=None), "Snakemake's benchmarks")


def _of_study(study: Study, job: tuple[str, ...]) -> bool:
    """Whether a job is the study's: a removed seed, scale or variant leaves its times behind."""
    run = next((job[i:] for i, part in enumerate(job) if re.fullmatch(r"seed\d+", part)), None)
    if run is None:
        return True
    if int(run[0].removeprefix("seed")) not in study.seeds:
        return False
    if len(run) > 1:
        return run[1:] in set(study.runs())
    if job[0] == "training_cost":
        return study.training_cost is not None
    return applies(study, "arrivals" if job[0] == "arrivals" else "wall_clock")


def _from_results(study: Study, results: Path) -> Durations | None:
    stages = {}
    costs = training_costs(study, results)
    if "seconds" in costs:
        stages["training"] = float(costs["seconds"].sum())
    for name, frame in (
        ("evaluation", load_evaluation(study, results)),
        ("throughput", load_throughput(study, results)),
        ("training_cost", load_training_cost(study, results)),
    ):
        if len(frame):
            stages[name] = float(frame["seconds"].sum())
    traces = load_arrivals(study, results)
    if len(traces):
        stages["arrivals"] = sum(
            union(list(trace[["start", "finish"]].itertuples(index=False, name=None)))
            for _, trace in traces.groupby(["seed", "policy"])
        )
    if not stages:
        return None
    source = "the seconds that results record, start-up excluded"
    return Durations(stages, None, None, source)


def union(spans: list[tuple[float, float]]) -> float:
    """Total length covered by intervals that may overlap."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def text(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"
