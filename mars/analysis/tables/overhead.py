"""What training each variant costs beside AR SFT."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table, Told
from mars.analysis.results import load_training_cost, of_every_seed, training_costs
from mars.analysis.statistics import Repeated
from mars.config import Study, TrainingCost

RELEASED = "MARS, step as released (2L, dense)"
AR_RELEASED = "AR SFT, step as released (padded)"


def training_overhead(study: Study, results: Path) -> Table:
    """What a training step of each variant costs beside AR SFT's.

    Step time and memory are the cost study's where there is one, and else of the training runs.
    """
    costs = of_every_seed(study, training_costs(study, results), ["scale", "variant"])
    timed = of_every_seed(study, load_training_cost(study, results), ["variant", "method"])
    steps = Steps(timed) if study.training_cost else None
    rows: list[Row] = []
    for scale in study.scales:
        reference = labels.reference(study, scale)
        base = _cost(study, costs, scale, reference) if reference else {}
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            if variant.objective is None:
                continue
            mine = _cost(study, costs, scale, name)
            row: dict[str, Any] = {
                "scale": scale,
                "model": labels.label(name, variant),
                "block_size": labels.drafted(variant),
                **mine,
            }
            for key in ("step", "tokens", "flops", "memory"):
                if mine.get(key) and base.get(key):
                    row[f"{key}_ratio"] = mine[key] / base[key]
            if steps is not None:
                row |= dict.fromkeys(MEASURED) | steps.of(scale, name)
            rows.append(row | _papers(labels.paper_model(variant) == "MARS"))
        cost = study.training_cost
        if steps is not None and cost is not None and cost.released and scale == cost.scale:
            made = study.variants[cost.released]
            alike = {"scale": scale, "model": AR_RELEASED, "block_size": "–"}
            rows.append(alike | steps.of(scale, cost.ar_variant, "ar_released"))
            row = {"scale": scale, "model": RELEASED, "block_size": made.block_size}
            rows.append(row | steps.of(scale, cost.released, "released") | _papers(True))
    title = "Training overhead"
    return Table("training_overhead", title, _columns(steps), [Section(title, rows)], _notes(study))


MEASURED = ("step", "step_ratio", "memory", "memory_ratio", "rate", "gflops", "mfu")
"""Of a row, what the cost study measures."""


class Steps:
    """The cost study's runs; ratios are taken within a repeat, to AR SFT laid out alike."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self._runs: dict[tuple[str, str, str], pd.DataFrame] = {}
        self._base: dict[tuple[str, str], pd.DataFrame] = {}
        groups: Iterable[tuple[Any, pd.DataFrame]] = runs.groupby(["scale", "variant", "method"])
        for (scale, variant, method), found in groups:
            mine = found.set_index(["seed", "repeat"]).sort_index()
            self._runs[scale, variant, method] = mine
            if method in ("ar_sft", "ar_released"):
                self._base[scale, method] = mine

    def of(self, scale: str, variant: str, method: str = "") -> dict[str, Repeated | None]:
        """The cells of a row; nothing where the variant was not measured.

        Args:
            method: of ``training_cost.csv``; left out: the variant as this project trains it.
        """
        known = [method] if method else ["ar_sft", "mars"]
        found = [self._runs[key] for m in known if (key := (scale, variant, m)) in self._runs]
        mine = next(iter(found), None)
        base = self._base.get((scale, "ar_released" if method.endswith("released") else "ar_sft"))
        if mine is None:
            return {}
        per_step = mine["seconds"] / mine["steps"]
        cells: dict[str, Repeated | None] = {
            "step": Repeated.of(list(per_step)),
            "memory": Repeated.of(list(mine["peak_memory_mb"])),
            "rate": Repeated.of(list(mine["tokens_per_s"])),
            "gflops": Repeated.of(list(mine["gflops_per_s"])),
            "mfu": Repeated.of(list(100 * mine["gflops_per_s"] / mine["peak_gflops_per_s"])),
        }
        if base is not None:
            ratios = {
                "step_ratio": per_step / (base["seconds"] / base["steps"]),
                "memory_ratio": mine["peak_memory_mb"] / base["peak_memory_mb"],
            }
            cells |= {key: Repeated.of(list(values)) for key, values in ratios.items()}
        return cells


def _papers(stands: bool) -> dict[str, str]:
    """The paper's ratios, beside the rows that stand for its MARS."""
    if not stands:
        return {}
    facts = paper.facts()["training_overhead"]
    low, high = facts["step_time_vs_sft"]
    memory = facts["peak_memory_vs_sft"]
    return {"paper_step": f"{low:.1f}–{high:.1f}", "paper_memory": f"{memory:.1f}"}


def _columns(steps: Steps | None) -> list[Column]:
    spread = steps is not None
    rates = [
        Column("rate", "Tokens/s", decimals=0, spread=True),
        Column("gflops", "GFLOP/s", decimals=1, spread=True),
        Column("mfu", "MFU (%)", decimals=1, spread=True),
    ]
    return [
        Column("scale", "Scale", text=True),
        Column("model", "Model", text=True),
        Column("block_size", "B", text=True),
        Column("examples", "Examples", text=True),
        Column("total", "Training (s)", decimals=0),
        Column("step", "Step (s)", decimals=3, spread=spread),
        Column("step_ratio", "Step time ÷ AR SFT", decimals=2, spread=spread),
        Column("paper_step", "(paper)", text=True),
        *(rates if spread else []),
        Column("tokens", "Tokens an example", decimals=0),
        Column("tokens_ratio", "Tokens ÷ AR SFT", decimals=2),
        Column("total_flops", "FLOP", text=True),
        Column("flops_ratio", "FLOP an example ÷ AR SFT", decimals=2),
        Column("memory", "Peak memory (MB)", decimals=0, spread=spread),
        Column("memory_ratio", "Memory ÷ AR SFT", decimals=2, spread=spread),
        Column("paper_memory", "(paper, memory)", text=True),
    ]


def _notes(study: Study) -> list[str]:
    cost = study.training_cost
    if cost is None:
        first = [
            f"A step is {study.training.batch_size} conversations. A run that shared its machine "
            "with others is slower than alone."
        ]
    else:
        first = [
            f"Step time, tokens/s, GFLOP/s and memory were measured apart, at {cost.scale}, by a "
            "job with the machine to itself: a step is forward, backward, clipping and AdamW on "
            f"{cost.conversations} {_kind(cost)} in one forward, the same for every row. "
            f"Methods took turns in {cost.repeats} repeats of {cost.steps} steps; shown are "
            "medians ± deviation, of ratios within a repeat. Examples, tokens an example, FLOP and "
            "training seconds are of the training runs, which may have shared the machine.",
            "Tokens/s are of conversations (one stream). GFLOP/s are what was computed, a backward "
            "pass taken as twice its forward, padding included; MFU is their share of what a large "
            "matrix product reached on the same machine in the same precision. Memory is that of "
            "tensors at their most in a step: weights, gradients, AdamW's state and activations.",
            f"‘{RELEASED}’ and ‘{AR_RELEASED}’ are the same objectives laid out as in the released "
            "code: a row for each conversation, padded to the longest, logits of every column, "
            "and for MARS both streams whole under a dense mask. The ratios of the one are to the "
            "other, as the paper's are; all other ratios are to AR SFT as trained here, packed.",
        ]
    return [
        *first,
        "Tokens an example are those of both streams.",
        "Compute-matched means matched in examples, as in the paper; the FLOP column shows what "
        "that leaves out.",
        f"The paper's ratios ({paper.CREDIT}) are of its layout of two full streams.",
    ]


def _kind(cost: TrainingCost) -> str:
    """The study's conversations, or drawn ones."""
    if cost.drawn is None:
        return "conversations"
    share = cost.drawn.response / cost.drawn.tokens
    return f"random conversations of {cost.drawn.tokens} tokens ({share:.0%} of them the response)"


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
        "total_flops": None if flops is None else Told(flops, f"{flops:.2e}"),
        "flops": None if flops is None else flops / examples,
        "memory": of("peak_memory_mb"),
    }
