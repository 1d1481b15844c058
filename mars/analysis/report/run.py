"""What a report says of the run: how long it took, on what, with which settings."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from mars.analysis import durations
from mars.analysis.report.page import terms
from mars.analysis.results import read_json
from mars.config import Study, dump_study

MEASURED = {
    "throughput": "Wall-clock grid",
    "arrivals": "Arrival trace",
    "training_cost": "Training cost",
}
"""What is measured by itself, and so has an environment of its own beside its CSV."""


def run(study: Study, results: Path) -> str:
    """Durations and environment, as HTML."""
    return "\n".join([*_durations(study, results), *_environment(study, results)])


def _durations(study: Study, results: Path) -> list[str]:
    spent = durations.durations(study, results)
    if spent is None:
        return ["<h3>Duration</h3>", "<p>No durations were recorded.</p>"]
    rows: dict[str, object] = {
        stage.replace("_", " "): durations.text(seconds) for stage, seconds in spent.stages.items()
    }
    rows["sum of all jobs"] = durations.text(spent.total)
    if spent.wall_clock is not None:
        rows["time with a job running"] = durations.text(spent.wall_clock)
    if spent.peak_memory_mb is not None:
        rows["largest job"] = f"{spent.peak_memory_mb:.0f} MB"
    source = f'<p class="notes">From {html.escape(spent.source)}.</p>'
    return ["<h3>Duration</h3>", terms(rows), source]


def _environment(study: Study, results: Path) -> list[str]:
    parts = ["<h3>Environment</h3>"]
    found = read_json(results / "environment.json")
    if found is None:
        parts.append("<p>environment.json is missing.</p>")
    else:
        parts.append(terms(_plain({k: v for k, v in found.items() if k != "libraries"})))
        if isinstance(libraries := found.get("libraries"), dict):
            parts.append(
                f"<details><summary>Library versions</summary>{terms(libraries)}</details>"
            )
    for seed in study.seeds:
        for name, title in MEASURED.items():
            setting = study.training_cost if name == "training_cost" else study.throughput
            own = read_json(results / f"seed{seed}" / f"{name}.environment.json")
            if own is not None and setting is not None:
                parts.append(f"<h3>{title}, seed {seed}</h3>{terms(_plain(own))}")
    return parts


def _plain(found: dict[str, Any]) -> dict[str, object]:
    return {k.replace("_", " "): v for k, v in found.items() if not isinstance(v, dict)}


def configuration(study: Study) -> str:
    """Every setting of the study, as HTML."""
    return (
        "<details><summary>The resolved configuration, every default written out</summary>"
        f'<pre tabindex="0">{html.escape(dump_study(study))}</pre></details>'
    )
