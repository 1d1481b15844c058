"""Requests that arrive over time: what each policy of τ gave them, by phase of the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mars.analysis import statistics as st
from mars.analysis.results import load_arrivals, of_every_seed
from mars.analysis.statistics import Estimate
from mars.config import Study
from mars.config.speed import Trace

CONTROLLER = "controller"


@dataclass(frozen=True)
class Served:
    """The requests of one phase under one policy; numbers are means of the seeds' own."""

    policy: str
    phase: int | None  # None: the whole trace
    requests: int  # of each seed
    median_latency: float  # seconds from arrival to finish
    slow_latency: float  # its 95th percentile
    wait: float  # mean seconds from arrival to start
    tokens_per_s: float  # Σ tokens ÷ time from the first arrival to the last finish
    tokens_per_forward: float
    score: Estimate  # per cent


def served(study: Study, results: Path) -> list[Served]:
    """Every policy's phases and then its whole trace, policies in the order they were run."""
    runs = of_every_seed(study, load_arrivals(study, results), ["policy"])
    found = []
    for policy in runs["policy"].unique():
        mine = runs[runs["policy"] == policy]
        found += [_served(policy, int(p), mine[mine["phase"] == p]) for p in _phases(mine)]
        found.append(_served(policy, None, mine))
    return found


def _phases(runs: pd.DataFrame) -> list[int]:
    return sorted(runs["phase"].unique())


def _served(policy: str, phase: int | None, runs: pd.DataFrame) -> Served:
    seeds = {int(str(seed)): frame for seed, frame in runs.groupby("seed")}

    def mean(of: Callable[[pd.DataFrame], float]) -> float:
        return float(np.mean([of(frame) for frame in seeds.values()]))

    return Served(
        policy,
        phase,
        requests=len(runs) // len(seeds),
        median_latency=mean(lambda f: float(latency(f).median())),
        slow_latency=mean(lambda f: float(latency(f).quantile(0.95))),
        wait=mean(lambda f: float((f["start"] - f["arrival"]).mean())),
        tokens_per_s=mean(lambda f: f["tokens"].sum() / (f["finish"].max() - f["arrival"].min())),
        tokens_per_forward=mean(lambda f: f["tokens"].sum() / f["forwards"].sum()),
        score=_score(policy, phase, seeds),
    )


def _score(policy: str, phase: int | None, seeds: dict[int, pd.DataFrame]) -> Estimate:
    """The mean over seeds; a document asked several times is drawn with all its requests.

    Without an interval where seeds were asked different documents.
    """
    per_seed = {seed: 100 * float(runs["score"].mean()) for seed, runs in seeds.items()}
    value = float(np.mean(list(per_seed.values())))
    asked = [runs.groupby("doc_id")["score"].agg(["sum", "count"]) for runs in seeds.values()]
    if len({tuple(documents.index) for documents in asked}) > 1:
        return Estimate(value, per_seed=per_seed)
    n = len(asked[0])
    drawn = st.Resampling(np.zeros(n), st.generator("arrivals", phase))
    ratios = [drawn.ratios(*documents.to_numpy("float64").T) for documents in asked]
    draws = 100 * np.mean(ratios, axis=0)
    return Estimate(value, st.unseen(draws, n, st.generator("arrivals", policy, phase)), per_seed)


def latency(runs: pd.DataFrame) -> pd.Series:
    """Seconds from arrival to finish, of each request."""
    return runs["finish"] - runs["arrival"]


def label(trace: Trace, policy: str) -> str:
    """A policy as people read it."""
    if policy == CONTROLLER:
        return f"controller, τ from {trace.tau_high:g} to {trace.tau_low:g}"
    return policy.replace("tau ", "τ = ")


def phase_label(trace: Trace, phase: int | None) -> str:
    """A phase and its load, in units of what the engine serves at ``tau_high``."""
    if phase is None:
        return "all"
    load = f", load {trace.loads[phase]:g}" if phase < len(trace.loads) else ""
    return f"{phase + 1}{load}"
