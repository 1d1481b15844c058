"""What a report says of itself: what the study is, what can be read from it, what is missing."""

from __future__ import annotations

import html
from pathlib import Path

from mars.analysis import labels
from mars.analysis.missing import missing
from mars.analysis.parts import applies
from mars.config import Study


def lead(study: Study) -> str:
    """The line under the title: how much the study is."""
    scales = ", ".join(study.scales)
    runs = sum(1 for _, variant in study.runs() if variant != "base")
    made = "training runs" if study.checkpoints == "trained" else "released checkpoints"
    seeds = f"{'seed' if len(study.seeds) == 1 else 'seeds'} {', '.join(map(str, study.seeds))}"
    return (
        f"{runs} {made} at scale {scales}; {len(study.evaluation.benchmarks)} benchmarks; {seeds}."
    )


def about(study: Study) -> str:
    """How to read the page, as HTML."""
    items = "".join(f"<li>{html.escape(point)}</li>" for point in _points(study))
    return f'<ul class="reading">{items}</ul>'


def _points(study: Study) -> list[str]:
    points = [
        "Rows and marks labelled ‘paper’ are the paper’s numbers, as printed. All others were "
        "measured by this run."
    ]
    if not all(labels.comparable(study, scale) for scale in study.scales):
        stands = [f"{s} for {v.paper}" for s, v in study.scales.items() if v.paper]
        points.append(
            "These are not the paper’s models"
            + (f" ({', '.join(stands)})" if stands else "")
            + ", nor its benchmarks, so absolute scores do not compare with the paper’s; "
            "differences between methods, ratios and shapes do."
        )
    points += [
        f"Intervals are 95 % bootstrap intervals {labels.covers(study)}"
        + ("." if len(study.seeds) == 1 else "; the standard deviation over seeds is beside them."),
        "Avg is the plain mean of the benchmarks and is shown only where all of them are there. "
        "A missing result shows as –, never as 0; so does a number over seeds that one of them "
        "lacks.",
    ]
    if study.data.source == "embedded":
        points.append(
            "The study keeps the paper’s relations (an AR SFT stage first, the same examples in "
            "the same order for every variant, a compute-matched control), not its epoch count: "
            "each stage sees distinct examples once instead of 5 epochs of the same, because a "
            "threshold on confidence needs confidence that means something."
        )
    if applies(study, "replay") or applies(study, "batching"):
        points.append(
            "‘Replayed acceptance’ means that how many tokens each step accepts was drawn, and "
            "forced on every method alike, so that their speed is compared at equal acceptance. "
            "Nothing under that label says what a model accepts, or how good its answers are."
        )
    controls = [
        name for name, v in study.variants.items() if labels.paper_model(v) == labels.CONTROL
    ]
    if controls:
        points.append(
            f"{controls[0]} is the compute-matched control: one schedule from the base model over "
            "as many examples as the others see in both stages. Compute is matched in examples, as "
            "in the paper; the training overhead table shows what MARS costs beside that."
        )
    return points


def gaps(study: Study, results: Path) -> str:
    """The results that are not there, each with the command that makes it; empty if none."""
    found = missing(study, results)
    if not found:
        return ""
    items = "".join(
        f"<li>{html.escape(gap.what)}: <code>{html.escape(gap.command)}</code></li>"
        for gap in found
    )
    count = f"{len(found)} result{'s' if len(found) > 1 else ''}"
    return (
        '<div class="missing"><p>These results were not there when the report was made. '
        "Each comes with the command that makes it.</p>"
        f"<details{' open' if len(found) <= 8 else ''}><summary>{count}</summary>"
        f"<ul>{items}</ul></details></div>"
    )
