"""The arrival trace: latency, throughput and score of each policy of τ, by phase."""

from __future__ import annotations

from pathlib import Path

from mars.analysis import labels
from mars.analysis.arrivals import label, phase_label, served
from mars.analysis.render import Column, Row, Section, Table
from mars.config import Study


def arrivals(study: Study, results: Path) -> Table:
    """Per policy and phase of the trace: requests, latency, wait, speed and score."""
    columns = [
        Column("model", "Policy", text=True),
        Column("phase", "Phase", text=True),
        Column("requests", "Requests", text=True),
        Column("median", "Median latency (s)", decimals=2),
        Column("slow", "95th percentile (s)", decimals=2),
        Column("wait", "Mean wait (s)", decimals=2),
        Column("tokens_per_s", "Tokens/s"),
        Column("tokens_per_forward", "Tokens/forward", decimals=2),
        Column("score", "Score", estimate=True, show_interval=True),
    ]
    title = "Requests that arrive over time, by policy of τ"
    made = study.throughput
    trace = made.trace if made else None
    if made is None or trace is None:
        notes = ["This study has no arrival trace."]
        return Table("arrivals", title, columns, [Section(title)], notes, len(study.seeds))
    rows: list[Row] = [
        {
            "model": label(trace, each.policy),
            "phase": phase_label(trace, each.phase),
            "requests": each.requests,
            "median": each.median_latency,
            "slow": each.slow_latency,
            "wait": each.wait,
            "tokens_per_s": each.tokens_per_s,
            "tokens_per_forward": each.tokens_per_forward,
            "score": each.score,
        }
        for each in served(study, results)
    ]
    notes = [
        f"{made.variant} of {made.scale}, prompts of {made.benchmark}, {trace.slots} rows in "
        "flight; the same arrivals under every policy. A load of 1 is the rate at which the "
        f"engine serves at τ = {trace.tau_high:g}.",
        f"The controller sets τ for all requests in flight: {trace.tau_high:g} while nothing "
        f"waits, down to {trace.tau_low:g} where {trace.patience} or more requests wait.",
        "Latency is from arrival to the last token, wait from arrival to the first forward. "
        "Tokens/s is over the time from a phase's first arrival to the last finish of its "
        "requests, so where the load is low it is bounded by arrivals.",
        f"Score has a 95 % bootstrap interval {labels.covers(study)}; a document asked several "
        "times is drawn with all its requests. The trace is run once per policy: times have no "
        "interval.",
    ]
    if len(study.seeds) > 1:
        notes.append("Means over seeds; 'seeds ±' is the standard deviation over them.")
    return Table("arrivals", title, columns, [Section(title, rows)], notes, len(study.seeds))
