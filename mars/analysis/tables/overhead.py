"""What training each variant costs beside AR SFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.results import training_costs
from mars.config import Study


def training_overhead(study: Study, results: Path) -> Table:
    """What a training step of each variant costs beside AR SFT's."""
    costs = training_costs(study, results)
    facts = paper.facts()["training_overhead"]
    low, high = facts["step_time_vs_sft"]
    rows: list[Row] = []
    for scale in study.scales:
        reference = labels.reference(study, scale)
        base = _cost(study, costs, scale, reference) if reference else {}
        for name in labels.ordered(study, scale):
            if study.variants[name].objective is None:
                continue
            mine = _cost(study, costs, scale, name)
            variant = study.variants[name]
            row: dict[str, Any] = {
                "scale": scale,
                "model": labels.label(name, variant),
                "block_size": labels.drafted(variant),
                **mine,
            }
            for key in ("step", "tokens", "flops", "memory"):
                if mine.get(key) and base.get(key):
                    row[f"{key}_ratio"] = mine[key] / base[key]
            if labels.paper_model(variant) == "MARS":
                row["paper_step"] = f"{low:.1f}–{high:.1f}"
                row["paper_memory"] = f"{facts['peak_memory_vs_sft']:.1f}"
            rows.append(row)
    columns = [
        Column("scale", "Scale", text=True),
        Column("model", "Model", text=True),
        Column("block_size", "B", text=True),
        Column("examples", "Examples", text=True),
        Column("total", "Training (s)", decimals=0),
        Column("step", "Step (s)", decimals=3),
        Column("step_ratio", "Step time ÷ AR SFT", decimals=2),
        Column("paper_step", "(paper)", text=True),
        Column("tokens", "Tokens an example", decimals=0),
        Column("tokens_ratio", "Tokens ÷ AR SFT", decimals=2),
        Column("total_flops", "FLOP", text=True),
        Column("flops_ratio", "FLOP an example ÷ AR SFT", decimals=2),
        Column("memory", "Peak memory (MB)", decimals=0),
        Column("memory_ratio", "Memory ÷ AR SFT", decimals=2),
        Column("paper_memory", "(paper, memory)", text=True),
    ]
    notes = [
        f"A step is {study.training.batch_size} conversations. Tokens are those of both streams.",
        "Compute-matched means matched in examples, as in the paper; the FLOP column shows what "
        "that leaves out. A run that shared its machine with others is slower than alone.",
        f"The paper's ratios ({paper.CREDIT}) are of its layout of two full streams.",
    ]
    title = "Training overhead"
    return Table("training_overhead", title, columns, [Section(title, rows)], notes)


def _cost(study: Study, costs: pd.DataFrame, scale: str, name: str) -> dict[str, Any]:
    """Costs of a run per example (mean over seeds), with whatever training.json says."""
    mine = costs[(costs["scale"] == scale) & (costs["variant"] == name)]
    if mine.empty or "examples" not in mine or not float(mine["examples"].mean()) > 0:
        return {}
    examples = float(mine["examples"].mean())

    def of(key: str) -> float | None:
        value = pd.to_numeric(mine[key], errors="coerce").mean() if key in mine else None
        return None if value is None or pd.isna(value) else float(value)

    seconds, flops, clean = of("seconds"), of("flops"), of("clean_tokens")
    return {
        "examples": int(examples),
        "total": seconds,
        "step": None if seconds is None else seconds / examples * study.training.batch_size,
        "tokens": None if clean is None else (clean + (of("masked_tokens") or 0)) / examples,
        "total_flops": None if flops is None else f"{flops:.2e}",
        "flops": None if flops is None else flops / examples,
        "memory": of("peak_memory_mb"),
    }
