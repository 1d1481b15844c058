"""Which parts of a study a table or a figure belongs to: a study may do without some."""

from __future__ import annotations

from typing import Any

from mars.config import Study

NEEDS = {
    "table5": "throughput.thresholds",
    "wall_clock": "throughput",
    "roofline": "throughput",
    "profile": "throughput",
    "replay": "throughput.replay",
    "batching": "throughput.continuous",
    "arrivals": "throughput.trace",
    "jacobi": "evaluation.jacobi",
    "acceptance": "evaluation.acceptance",
    "accepted_counts": "evaluation.panels",
    "reliability": "evaluation.panels",
}
"""The setting without which there is nothing to show, of tables and figures alike."""


OF_TRAINING = ("training_overhead", "signal_fraction", "loss_curves")
"""What shows how the study's models were trained, and nothing where they were released."""


OF_THRESHOLDS = {"accepted_counts": 2, "reliability": 2, "spans": 2, "score_tau": 3}
"""How many thresholds there must be to show something, τ = 1 among them."""


def thresholds(study: Study) -> set[float]:
    """Every τ that some benchmark of a study is decoded at, by the acceptance rule of the paper."""
    made = study.evaluation
    return {1.0, *made.thresholds, *(made.sweep_thresholds if made.sweep != "none" else [])}


def applies(study: Study, name: str) -> bool:
    """Whether a table or figure is part of a study at all."""
    if name in OF_TRAINING and study.checkpoints == "released":
        return False
    if name in OF_THRESHOLDS and len(thresholds(study)) < OF_THRESHOLDS[name]:
        return False
    if name not in NEEDS:
        return True
    found: Any = study
    for key in NEEDS[name].split("."):
        found = getattr(found, key) if found else None
    return bool(found)


FORMS = ("ours", "paper", "difference")
"""The forms of a table that the paper has too, each in the paper's own layout."""

COMPARED = ("table2", "table3", "table4", "table5")
"""The tables that have them."""
