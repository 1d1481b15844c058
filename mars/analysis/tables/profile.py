"""Where the time of a forward goes, for our methods and what they are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis.render import Column, Section, Table
from mars.analysis.results import load_profile, of_every_seed
from mars.analysis.speed import LABELS, REPLAYED, kind_of
from mars.config import Study

KINDS = ("linear", "attention", "other")


def profile(study: Study, results: Path) -> Table:
    """Milliseconds of a forward of the batch, by kind of work."""
    runs = load_profile(study, results).fillna({"draft": ""})
    runs = of_every_seed(study, runs, ["acceptance", "method"])
    rows = [_row(run) for run in runs.to_dict("records")]
    columns = [
        Column("model", "Method", text=True),
        Column("batch_size", "Batch", text=True),
        Column("width", "Columns/forward"),
        Column("ms", "Forward (ms)", decimals=2),
        Column("linear", "Linear layers (ms)", decimals=2),
        Column("attention", "Attention (ms)", decimals=2),
        Column("other", "Other operations (ms)", decimals=2),
        Column("rest", "Python and dispatch (ms)", decimals=2),
    ]
    replayed = bool(len(runs)) and set(runs["acceptance"]) == {"replayed"}
    notes = [
        "A mean over the forwards of one run, prefill among them; the kinds are told apart by "
        "PyTorch's profiler in a second run, and what they leave of the first is Python and the "
        "dispatch of operations.",
        "A draft pays where a forward costs fewer times as much as it accepts tokens. Columns are "
        "tokens and masks that go through the model: where arithmetic is the limit, linear layers "
        "take time by the column, and a draft costs what it is wide.",
        *([f"{REPLAYED.capitalize()}: as much for every method that drafts."] if replayed else []),
    ]
    title = "Wall-clock: where the time of a forward goes"
    return Table("profile", title, columns, [Section(title, rows)], notes)


def _row(run: dict[Any, Any]) -> dict[str, Any]:
    spent = {kind: float(run[f"{kind}_ms"]) for kind in KINDS}
    rest = float(run["ms"]) - sum(spent.values())
    return {
        "model": LABELS[kind_of(run["method"], run["cache"], run["draft"])],
        "batch_size": int(run["batch_size"]),
        "width": float(run["model_tokens"]) / float(run["model_forwards"]),
        "ms": float(run["ms"]),
        **spent,
        # the profiler itself takes time, on a small model more than there is left
        "rest": None if pd.isna(rest) or rest < 0 else rest,
    }
