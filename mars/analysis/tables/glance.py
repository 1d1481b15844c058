"""The study at a glance: what MARS gains and costs against AR SFT, ours and the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.statistics import Estimate, average
from mars.analysis.summary import Summary, summarise
from mars.config import Study


def glance(study: Study, results: Path) -> Table:
    """Mean score of AR SFT, MARS's change from it at τ = 1 and below, tokens per forward."""
    summary = summarise(study, results)
    tau = max((t for t in study.evaluation.thresholds if t < 1), default=None)
    rows: list[Row] = []
    shown: set[tuple[str, int]] = set()
    for scale in study.scales:
        reference = labels.reference(study, scale)
        if reference is None:
            continue
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            if labels.paper_model(variant) != "MARS":
                continue
            size = variant.block_size
            head: dict[str, Any] = {"model": labels.label(name, variant), "block_size": size}
            row = {
                **head,
                "scale": scale,
                "source": "ours",
                "ar": average(
                    summary.score(scale, reference, b, summary.decoding(reference, b))
                    for b in labels.columns(study)
                ),
                "one": _change(summary, scale, name, 1.0, reference),
            }
            if tau is not None:
                row["multi"] = _change(summary, scale, name, tau, reference)
                row["forwards"] = average(
                    summary.tokens_per_forward(scale, name, b, summary.decoding(name, b, tau))
                    for b in labels.columns(study)
                )
            rows.append(row)
            theirs = _paper(study, study.scales[scale].paper, size, tau)
            if theirs and (scale, size) not in shown:
                at = study.scales[scale].paper
                rows.append({**head, **theirs, "scale": at, "model": "MARS"})
                shown.add((scale, size))
    below = "τ < 1" if tau is None else f"τ = {tau:g}"
    columns = [
        Column("scale", "Scale", text=True),
        Column("model", "Model", text=True),
        Column("block_size", "B", text=True),
        Column("source", "Source", text=True),
        Column("ar", "AR SFT, Avg", 1, True, True),
        Column("one", "MARS at τ = 1, minus AR SFT", 1, True, True, signed=True),
        Column("multi", f"MARS at {below}, minus AR SFT", 1, True, True, signed=True),
        Column("forwards", f"Tokens per forward at {below}", 2, True, True),
    ]
    notes = [
        f"Means over the benchmarks, in points; 95 % bootstrap intervals {labels.covers(study)}, "
        f"differences paired by document. Rows marked 'paper': {paper.CREDIT}.",
    ]
    title = "At a glance"
    return Table("glance", title, columns, [Section(title, rows)], notes, len(study.seeds))


def _change(summary: Summary, scale: str, name: str, tau: float, reference: str) -> Estimate | None:
    parts = []
    for b in labels.columns(summary.study):
        mine = (name, summary.decoding(name, b, tau))
        other = (reference, summary.decoding(reference, b))
        parts.append(summary.difference(scale, b, mine, other))
    return average(parts)


def _paper(study: Study, at: str | None, size: int, tau: float | None) -> dict[str, Any] | None:
    """The paper's means over the same columns, where it has them."""

    def mean_of(found: dict[str, float] | None) -> float | None:
        return (labels.paper_row(study, found) or {}).get("Avg")

    base = mean_of(paper.scores("table2", at, labels.AR_SFT, None))
    if base is None:
        return None
    one = mean_of(
        paper.scores("table2", at, "MARS", size) or paper.scores("table3", at, "MARS", size)
    )
    multi = forwards = None
    if tau is not None:
        multi = mean_of(paper.multi_token(at, size, tau, "accuracy"))
        forwards = mean_of(paper.multi_token(at, size, tau, "tokens_per_forward"))
    return {
        "source": "paper",
        "ar": base,
        "one": None if one is None else round(one - base, 6),
        "multi": None if multi is None else round(multi - base, 6),
        "forwards": forwards,
    }
