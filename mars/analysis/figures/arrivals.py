"""Requests that arrive over time: latency, throughput, score and τ under each policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mars.analysis import labels
from mars.analysis.arrivals import CONTROLLER, label, latency, phase_label, served
from mars.analysis.figures import style
from mars.analysis.results import load_arrivals
from mars.config import Study
from mars.config.speed import Trace

TITLE = "Requests that arrive over time"
ALT = (
    "Four panels over a trace of requests with quiet and busy phases, one line for each policy of "
    "τ: latency against arrival time, tokens per second over time, score in each phase with its "
    "interval, and the controller's τ over time with the number of requests that wait."
)
WINDOWS = 20
"""The sliding window of throughput is the trace's length over this."""


def data(study: Study, results: Path) -> pd.DataFrame:
    """The first seed's requests by arrival, with ``latency`` and its running ``median``.

    Columns: those of ``ARRIVALS_COLUMNS``, latency, median (of the requests around each).
    """
    runs = load_arrivals(study, results)
    runs = runs[runs["seed"] == study.seeds[0]].sort_values(["policy", "arrival", "request"])
    runs = runs.assign(latency=latency(runs))
    median = runs.groupby("policy")["latency"].transform(
        lambda s: s.rolling(max(3, len(s) // 10), min_periods=1, center=True).median()
    )
    return runs.assign(median=median).reset_index(drop=True)


def throughput(
    runs: pd.DataFrame, times: NDArray[np.float64], window: float
) -> NDArray[np.float64]:
    """Tokens/s in the ``window`` seconds around each of ``times``, shape as theirs.

    A request's tokens are spread evenly from its start to its finish.
    """
    start = runs["start"].to_numpy("float64")
    length = np.maximum(runs["finish"].to_numpy("float64") - start, 1e-9)
    tokens = runs["tokens"].to_numpy("float64")

    def made(until: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip((until[:, None] - start) / length, 0, 1) @ tokens

    return (made(times + window / 2) - made(times - window / 2)) / window


def waiting_over_time(runs: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times at which a request arrives or starts, and how many wait from each on, shapes (n,)."""
    events = pd.concat([runs["arrival"], runs["start"]]).to_numpy("float64")
    times, at = np.unique(events, return_inverse=True)
    change = np.zeros(len(times), dtype="int64")
    np.add.at(change, at, np.repeat([1, -1], len(runs)))
    return times, np.cumsum(change)


def figure(study: Study, results: Path) -> Figure:
    """Latency and throughput above, score and the controller's τ below."""
    runs = data(study, results)
    drawn = Figure(figsize=(style.WIDE, 5.0), layout="constrained")
    axes = drawn.subplots(2, 2)
    titles = ("Latency", "Throughput", "Score", "The controller's τ")
    for ax, title in zip(axes.flat, titles, strict=True):
        ax.set_title(title, loc="left")
    trace = study.throughput.trace if study.throughput else None
    if runs.empty or trace is None:
        for ax in axes.flat:
            style.nothing(ax)
        return drawn
    looks = _looks(list(runs["policy"].unique()))
    for ax in (axes[0][0], axes[0][1], axes[1][1]):
        ax.set_xlabel("time in the trace (s)")
    for ax in axes[0]:
        _phases(ax, runs)
    end = float(runs["finish"].max())
    times = np.linspace(0.0, end, 400)
    for policy, (colour, marker, dashes) in looks.items():
        mine = runs[runs["policy"] == policy]
        axes[0][0].plot(
            mine["arrival"], mine["latency"], marker, color=colour, alpha=0.25, markersize=3
        )
        axes[0][0].plot(mine["arrival"], mine["median"], dashes, color=colour)
        rate = throughput(mine, times, end / WINDOWS)
        shown = times <= mine["finish"].max()
        axes[0][1].plot(times[shown], rate[shown], dashes, color=colour)
    axes[0][0].set_ylabel("latency (s)")
    axes[0][1].set_ylabel("tokens/s")
    _scores(axes[1][0], study, results, trace, looks)
    _controller(axes[1][1], runs[runs["policy"] == CONTROLLER])
    handles = [axes[0][0].plot([], [], d, marker=m, color=c)[0] for c, m, d in looks.values()]
    names = [label(trace, policy) for policy in looks]
    drawn.legend(handles, names, loc="outside lower center", ncols=len(looks))
    return drawn


def _looks(policies: list[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and dashes of each policy: the fixed ones from τ = 1 down, then the rest."""
    fixed = sorted((p for p in policies if p != CONTROLLER), key=_tau, reverse=True)
    colours = (style.GREY, style.BLUE, style.ORANGE, style.SKY, style.PURPLE)
    looks = {
        p: (colours[i % len(colours)], style.MARKERS[i % len(style.MARKERS)], "--")
        for i, p in enumerate(fixed)
    }
    if CONTROLLER in policies:
        looks[CONTROLLER] = (style.GREEN, "*", "-")
    return looks


def _tau(policy: str) -> float:
    return float(policy.removeprefix("tau "))


def _phases(ax: Axes, runs: pd.DataFrame) -> None:
    """Shade every second phase, from its first arrival to the next phase's."""
    starts = runs.groupby("phase")["arrival"].min().sort_index()
    edges = [*starts, float(runs["arrival"].max())]
    for i in range(1, len(starts), 2):
        ax.axvspan(edges[i], edges[i + 1], color="#f1f1f1", zorder=0)


def _scores(
    ax: Axes,
    study: Study,
    results: Path,
    trace: Trace,
    looks: dict[str, tuple[str, str, str]],
) -> None:
    found = [each for each in served(study, results) if each.phase is not None]
    phases = sorted({each.phase for each in found if each.phase is not None})
    for i, (policy, (colour, marker, _)) in enumerate(looks.items()):
        mine = [each for each in found if each.policy == policy]
        x = [phases.index(each.phase or 0) + 0.16 * (i - (len(looks) - 1) / 2) for each in mine]
        y = np.array([each.score.value for each in mine])
        bounds = np.array([each.score.interval or (np.nan, np.nan) for each in mine]).T
        error = np.abs(bounds - y)
        ax.errorbar(x, y, yerr=error, fmt=marker, color=colour, elinewidth=0.9, markersize=6)
    ax.set_xticks(range(len(phases)), [f"phase {phase_label(trace, p)}" for p in phases])
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("score (%)")


def _controller(ax: Axes, runs: pd.DataFrame) -> None:
    if runs.empty:
        style.nothing(ax)
        return
    waiting = ax.twinx()
    _phases(waiting, runs)
    times, queue = waiting_over_time(runs)
    waiting.fill_between(times, queue, step="post", color=style.FAINT, alpha=0.7)
    waiting.set_ylabel("requests waiting (grey)", color=style.GREY)
    waiting.set_ylim(bottom=0)
    waiting.grid(visible=False)
    ax.set_zorder(waiting.get_zorder() + 1)  # τ over the grey area, not under it
    ax.patch.set_visible(False)
    seen = pd.DataFrame(
        {
            "time": pd.concat([runs["start"], runs["finish"]]),
            "tau": pd.concat([runs["tau_start"], runs["tau_end"]]),
        }
    ).sort_values("time", kind="stable")
    ax.plot(seen["time"], seen["tau"], drawstyle="steps-post", color=style.GREEN, linewidth=1.2)
    ax.set_ylabel("τ (green)", color=style.GREEN)
    ax.set_ylim(min(0.5, float(seen["tau"].min()) - 0.05), 1.02)


def caption(study: Study) -> str:
    """The caption, in plain text."""
    made = study.throughput
    trace = made.trace if made else None
    if made is None or trace is None:
        return (
            "Requests that arrive over time, under fixed thresholds and under a controller of τ. "
            "This study has no arrival trace."
        )
    loads = ", ".join(f"{load:g}" for load in trace.loads)
    return (
        f"A trace of {sum(trace.requests)} requests in {len(trace.loads)} phases of load {loads} "
        f"(1: what the engine serves at τ = {trace.tau_high:g}), {trace.slots} rows in flight, "
        f"{made.variant} of {made.scale}. Latency is from arrival to the last token: each request, "
        "and the running median. Throughput is in a sliding window of a twentieth of the trace. "
        f"Scores have 95 % bootstrap intervals {labels.covers(study)}. The controller lowers τ "
        f"from {trace.tau_high:g} to {trace.tau_low:g} as up to {trace.patience} requests wait. "
        "Every second phase is shaded; times are of the first seed."
    )
