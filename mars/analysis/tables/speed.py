"""Table 5 (wall-clock), training overhead, and Jacobi's tokens per forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.results import as_rows, load_throughput, training_costs
from mars.analysis.statistics import Estimate
from mars.analysis.summary import Summary, summarise
from mars.analysis.tables.quality import ours, score_columns
from mars.config import Decoding, Study

METHODS = {
    ("generate", None): "AR, transformers generate",
    ("ar", None): "AR, this suite's loop",
    ("mars", "none"): "MARS (no cache)",
    ("mars", "block"): "MARS + block cache",
    ("mars", "cursor"): "MARS + cursor cache",
}
"""Rows of Table 5 in the paper's order; the cursor cache is what the paper leaves as future."""

PAPER_METHODS = {
    "AR, transformers generate": "AR (KV cache)",
    "MARS (no cache)": "MARS (no cache)",
    "MARS + block cache": "MARS + block cache",
}


def wall_clock_medians(study: Study, results: Path) -> pd.DataFrame:
    """One row per (method, B_cache, batch size), medians over repeats and seeds.

    ``speedup_generate`` and ``speedup_ar`` are ratios of seconds over the same prompts;
    ``efficiency`` is the ratio of tokens/s to our own AR loop's ÷ tokens per forward.
    """
    names = ["label", "cache_block", "batch_size", "tokens_per_s", "seconds", "seconds_sd"]
    more = ["speedup_generate", "speedup_ar", "tokens_per_forward", "efficiency", "peak_memory_mb"]
    runs = load_throughput(study, results)
    pairs = zip(runs["method"], runs["cache"], strict=True)
    runs["label"] = [METHODS.get((m, c if m == "mars" else None)) for m, c in pairs]
    runs = runs[runs["label"].notna()]
    if runs.empty:
        return pd.DataFrame(columns=[*names, *more])
    groups = runs.groupby(["label", "cache_block", "batch_size"], dropna=False)
    out = groups.agg(
        tokens_per_s=("tokens_per_s", "median"),
        seconds=("seconds", "median"),
        seconds_sd=("seconds", "std"),
        tokens_per_forward=("tokens_per_forward", "mean"),
        peak_memory_mb=("peak_memory_mb", "max"),
    ).reset_index()
    for name, label in (("generate", ("generate", None)), ("ar", ("ar", None))):
        base = out[out["label"] == METHODS[label]].set_index("batch_size")
        out[f"speedup_{name}"] = out["batch_size"].map(base["seconds"]) / out["seconds"]
        out[f"rate_{name}"] = out["tokens_per_s"] / out["batch_size"].map(base["tokens_per_s"])
    out["efficiency"] = out["rate_ar"] / out["tokens_per_forward"]
    place = {label: i for i, label in enumerate(METHODS.values())}
    out["place"] = out["label"].map(place)
    out = out.sort_values(["place", "cache_block", "batch_size"], na_position="first")
    return out[[*names, *more]].reset_index(drop=True)


def wall_clock(study: Study, results: Path) -> Table:
    """Table 5: tokens/s, time and speedup over a grid of batch sizes and block caches."""
    columns = [
        Column("model", "Method", text=True),
        Column("cache_block", "B_cache", text=True),
        Column("batch_size", "Batch", text=True),
        Column("tokens_per_s", "Tokens/s"),
        Column("seconds", "Time (s)", decimals=2),
        Column("seconds_sd", "± (repeats)", decimals=2),
        Column("speedup_generate", "Speedup vs generate", decimals=2),
        Column("speedup_ar", "Speedup vs our AR", decimals=2),
        Column("tokens_per_forward", "Tokens/forward", decimals=2),
        Column("efficiency", "Efficiency", decimals=2),
        Column("peak_memory_mb", "Peak memory (MB)", decimals=0),
        Column("paper_tokens_per_s", "Tokens/s (paper)"),
        Column("paper_time", "Time in s (paper)"),
        Column("paper_speedup", "Speedup (paper)", decimals=2),
    ]
    grid = study.throughput
    rows: list[Row] = []
    for row in as_rows(wall_clock_medians(study, results)):
        found = _paper_wall_clock(row["label"], row["cache_block"], row["batch_size"])
        rows.append({**row, "model": row["label"], **found})
    setting = "This study has no wall-clock grid."
    if grid is not None:
        setting = (
            f"{grid.variant} of {grid.scale} at τ = {grid.tau:g}, {grid.prompts} prompts of "
            f"{grid.benchmark}, at most {grid.max_new_tokens} new tokens; medians of "
            f"{grid.repeats} repeats, ± their standard deviation; one warm-up a method and "
            "batch size is dropped."
        )
    at = paper.facts()["wall_clock"]
    notes = [
        setting,
        "Speedup is a ratio of seconds over the same prompts. 'generate' is transformers' own "
        "cached greedy decoding, what the paper calls AR (KV cache); 'our AR' is this suite's "
        "loop at τ = 1, the fairer base, since it shares everything with MARS but the drafts.",
        "Efficiency is the speedup in tokens/s over our AR loop ÷ tokens per forward: 1 means "
        "that a forward with drafts costs what a forward without them does.",
        "On a CPU, peak memory is that of the whole process so far, which holds every model.",
        f"The paper's columns ({paper.CREDIT}) are {at['model']}, {at['questions']} GSM8K "
        f"questions, τ = {at['tau']:g}, on one GPU: only ratios compare. It also ran B_cache "
        "64, 128 and 256.",
    ]
    title = "Table 5: wall-clock speed"
    return Table("table5", title, columns, [Section(title, rows)], notes)


def _paper_wall_clock(label: str, cache_block: float, batch_size: int) -> dict[str, Any]:
    rows = paper.table("table5")
    same_block = rows["cache_block"].isna() if pd.isna(cache_block) else None
    if same_block is None:
        same_block = rows["cache_block"] == cache_block
    rows = rows[
        (rows["method"] == PAPER_METHODS.get(label))
        & same_block
        & (rows["batch_size"] == batch_size)
    ]
    if rows.empty:
        return {}
    first = rows.iloc[0]
    return {
        "paper_tokens_per_s": float(first["tokens_per_s"]),
        "paper_time": float(first["time_s"]),
        "paper_speedup": float(first["speedup"]),
    }


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
        for name in labels.ordered(study, scale) if taus else []:
            variant = study.variants[name]
            if labels.paper_model(variant) != "MARS" or variant.block_size != size:
                continue
            tau = taus[0]

            def mars(b: str, scale: str = scale, name: str = name, tau: float = tau) -> Any:
                return summary.tokens_per_forward(scale, name, b, summary.decoding(name, b, tau))

            at = {"scale": scale, "model": f"MARS, B = {size}", "tau": tau}
            forwards.append(ours(study, mars, at))
            if here:
                forwards.append({**paper_head, "model": "MARS", "Avg": facts["mars"]})
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
        "Avg carries a 95 % bootstrap interval over documents only.",
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
