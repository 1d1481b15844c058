"""Jacobi's tokens per forward on the AR model, beside MARS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.statistics import Estimate
from mars.analysis.summary import Summary, summarise
from mars.analysis.tables.quality import ours, score_columns
from mars.config import Decoding, Study


def jacobi(study: Study, results: Path) -> Table:
    """Tokens per forward of Jacobi decoding on the AR model, beside MARS."""
    summary = summarise(study, results)
    forwards: list[Row] = []
    scores: list[Row] = []
    setting = study.evaluation.jacobi
    taus = sorted(set(study.evaluation.thresholds) - {1.0}, reverse=True)
    for scale in study.scales if setting else []:
        assert setting is not None
        if scale not in study.scales_of(setting.variant):
            continue
        head = {"scale": scale, "model": f"Jacobi on AR SFT, window {setting.window}", "tau": None}

        def count(b: str, scale: str = scale) -> Estimate | None:
            name, how, _ = _jacobi(summary, b)
            return summary.tokens_per_forward(scale, name, b, how)

        def change(b: str, scale: str = scale) -> Estimate | None:
            name, how, greedy = _jacobi(summary, b)
            return summary.difference(scale, b, (name, how), (name, greedy))

        forwards.append(ours(study, count, head))
        scores.append({**ours(study, change, head), "decimals": 1})
        facts = paper.facts()["jacobi_tokens_per_forward"]
        here = study.scales[scale].paper == facts["scale"]
        paper_head = {**head, "scale": facts["scale"], "source": "paper"}
        if here:
            forwards.append({**paper_head, "model": "Jacobi", "Avg": facts["baseline"]})
        size = min(
            (v.block_size for v in study.variants.values() if labels.paper_model(v) == "MARS"),
            default=None,
        )
        beside = [{**paper_head, "model": "MARS", "Avg": facts["mars"]}] if here else []
        for name in labels.ordered(study, scale) if taus else []:
            variant = study.variants[name]
            if labels.paper_model(variant) != "MARS" or variant.block_size != size:
                continue
            tau = taus[0]

            def mars(b: str, scale: str = scale, name: str = name, tau: float = tau) -> Any:
                return summary.tokens_per_forward(scale, name, b, summary.decoding(name, b, tau))

            at = {"scale": scale, "model": f"MARS, {labels.line(study, name)}", "tau": tau}
            forwards += [ours(study, mars, at), *beside]
            beside = []  # under the first only
    columns = [
        Column("scale", "Scale", text=True),
        Column("model", "Model", text=True),
        Column("tau", "τ", text=True),
        Column("source", "Source", text=True),
        *score_columns(study, decimals=2),
    ]
    notes = [
        "Jacobi decoding is exact: its scores must equal greedy AR decoding's, as the second part "
        "checks; any difference is rounding between near-ties.",
        "A guess that was never predicted yet (all of them, at the first step) is the last prompt "
        "token; afterwards the predictions that were not accepted are the next guesses.",
        f"The paper gives one number each ({paper.CREDIT}), not one a benchmark.",
        f"Avg carries a 95 % bootstrap interval {labels.covers(study)}.",
    ]
    sections = [
        Section("Tokens per forward", forwards),
        Section("Score of Jacobi minus greedy AR (points)", scores, signed=True),
    ]
    title = "Jacobi decoding of the AR model"
    return Table("jacobi", title, columns, sections, notes, len(study.seeds))


def _jacobi(summary: Summary, benchmark: str) -> tuple[str, Decoding, Decoding | None]:
    """The variant that Jacobi reads, how, and how it is read greedily."""
    setting = summary.study.evaluation.jacobi
    assert setting is not None
    found = summary.study.decodings(setting.variant, benchmark)
    how = next(d for d in found if d.decoder == "jacobi")
    return setting.variant, how, summary.decoding(setting.variant, benchmark)
