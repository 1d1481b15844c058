"""Table 5 (wall-clock speed, in the paper's layout), and what the machine gave beside its ceilings.

Two tables, for two questions of two readers: how much faster, beside the paper; and why not more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis import paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.results import load_throughput
from mars.analysis.speed import (
    AR,
    GENERATE,
    LABELS,
    PAPER_METHODS,
    REPLAYED,
    SHORT,
    STATIC,
    Grid,
    Setting,
    acceptance_label,
    load_grid,
    load_grids,
    prompts_decoded,
)
from mars.analysis.statistics import Repeated
from mars.config import Study
from mars.config.speed import Throughput

HEAD = [
    Column("model", "Method", text=True),
    Column("cache_block", "B_cache", text=True),
    Column("batch_size", "Batch", text=True),
]
PROMPTS = Column("prompts", "Prompts", text=True)
TIMING = [
    PROMPTS,
    Column("tokens_per_s", "Tokens/s", spread=True, best="high"),
    Column("seconds", "Time (s)", decimals=2, spread=True, best="low"),
    Column("speedup", "Speedup", decimals=2, spread=True, best="high"),
    Column("opponent", "over", text=True),
    Column("vs_generate", "vs generate", decimals=2, spread=True),
    Column("vs_generate_static", "vs generate (static)", decimals=2, spread=True),
    Column("vs_ar", "vs our AR", decimals=2, spread=True),
]
FORWARDS = [
    Column("tokens_per_forward", "Tokens/forward", decimals=2),
    Column("efficiency", "Efficiency", decimals=2, spread=True),
    Column("efficiency_vs_ar", "Efficiency vs our AR", decimals=2, spread=True),
]
RATIOS = (
    "Speedup is a ratio of seconds over the same prompts, and is over the fastest autoregressive "
    "method at that batch size, which the next column names (the one that no other is faster than "
    "by medians of such ratios). 'vs generate' is over transformers' "
    "own greedy decoding with its dynamic cache, what the paper calls AR (KV cache), 'vs generate "
    "(static)' with its static one; 'vs our AR' over this suite's loop at τ = 1, which shares "
    "everything with MARS but the drafts."
)
EFFICIENCY = (
    "Efficiency is the speedup in tokens/s over the same fastest autoregressive method ÷ tokens "
    "per forward: at 1 every token that a forward adds is gained in time. 'Efficiency vs our AR' "
    "is over this suite's loop instead: 1 means that a forward with drafts costs what one of that "
    "loop does."
)


def timing(grid: Grid, setting: Setting) -> dict[str, Any]:
    """The cells of ``HEAD``, ``TIMING`` and ``FORWARDS``."""
    batch = setting.batch_size
    opponent = grid.opponent(batch)
    forwards = grid.of("tokens_per_forward", setting)
    return {
        "model": LABELS[setting.method],
        "cache_block": setting.cache_block,
        "batch_size": batch,
        "prompts": grid.prompts(setting),
        "tokens_per_s": grid.of("tokens_per_s", setting),
        "seconds": grid.of("seconds", setting),
        "speedup": grid.speedup(setting, opponent),
        "opponent": SHORT[opponent.method] if opponent else None,
        "vs_generate": grid.speedup(setting, grid.find(GENERATE, batch)),
        "vs_generate_static": grid.speedup(setting, grid.find(STATIC, batch)),
        "vs_ar": grid.speedup(setting, grid.find(AR, batch)),
        "tokens_per_forward": forwards and forwards.value,
        "efficiency": grid.efficiency(setting, opponent),
        "efficiency_vs_ar": grid.efficiency(setting),
    }


def repeats(study: Study) -> str:
    """How the numbers of a timing table come from its runs."""
    made = study.throughput
    if made is None:
        return "This study has no wall-clock grid."
    seeds = f" of each of {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    runs = f"Medians of {made.repeats} repeats" if made.repeats > 1 else "One repeat"
    return (
        f"{runs}{seeds}, in which the methods take turns, ± their standard deviation; ratios are "
        "taken within each repeat. A warm-up of each method at each batch size is dropped."
    )


def wall_clock(study: Study, results: Path) -> Table:
    """Table 5: tokens/s, time and speedup over a grid of batch sizes and block caches."""
    made = study.throughput
    sections: list[Section] = []
    for tau in made.thresholds if made else []:
        grid = load_grid(study, results, tau)
        rows: list[Row] = [{**timing(grid, s), **_paper(s)} for s in grid.settings]
        sections.append(Section(acceptance_label(tau), rows))
    columns = [
        *HEAD,
        *TIMING,
        *FORWARDS,
        Column("paper_tokens_per_s", "Tokens/s (paper)"),
        Column("paper_time", "Time in s (paper)"),
        Column("paper_speedup", "Speedup (paper)", decimals=2),
    ]
    at = paper.facts()["wall_clock"]
    notes = [repeats(study), RATIOS, EFFICIENCY]
    if made:
        taus = ", ".join(f"{tau:g}" for tau in made.thresholds)
        notes.insert(
            0,
            f"{made.variant} of {made.scale} at τ = {taus}, {prompts_decoded(made)}, at most "
            f"{made.max_new_tokens} new tokens. Draft auto lets the "
            "engine draft fewer tokens where a forward of more costs too much. This suite's AR "
            "loop and the cursor cache give a finished row's place to the next prompt; the others "
            "decode batch after batch, as they do in use.",
        )
    notes.append(
        f"The paper's columns ({paper.CREDIT}) are {at['model']}, {at['questions']} GSM8K "
        f"questions, τ = {at['tau']:g}, on one GPU, with speedups over AR (KV cache): only ratios "
        "compare. Its block cache stands beside ours and beside its algorithm as released."
        + _also_ran(made)
    )
    title = "Table 5: wall-clock speed"
    best = ("batch_size",)
    return Table("table5", title, columns, sections or [Section(title)], notes, best_within=best)


def _also_ran(made: Throughput | None) -> str:
    """The block sizes of the paper's cache that the study does not time."""
    theirs = paper.table("table5")["cache_block"].dropna().astype(int).unique()
    rest = [str(size) for size in theirs if made and size not in made.cache_blocks]
    if not rest:
        return ""
    several = f"{', '.join(rest[:-1])} and {rest[-1]}" if len(rest) > 1 else rest[0]
    return f" It also ran B_cache {several}."


def _paper(setting: Setting) -> dict[str, Any]:
    rows = paper.table("table5")
    rows = rows[
        (rows["method"] == PAPER_METHODS.get(setting.method))
        & (rows["cache_block"].fillna(0) == (setting.cache_block or 0))
        & (rows["batch_size"] == setting.batch_size)
    ]
    if rows.empty:
        return {}
    first = rows.iloc[0]
    return {
        "paper_tokens_per_s": float(first["tokens_per_s"]),
        "paper_time": float(first["time_s"]),
        "paper_speedup": float(first["speedup"]),
    }


def roofline(study: Study, results: Path) -> Table:
    """First token apart from decoding, and what was achieved of the machine's ceilings."""
    sections = [
        Section(acceptance_label(tau), [_achieved(grid, s, tau is None) for s in grid.settings])
        for tau, grid in load_grids(study, results).items()
    ]
    columns = [
        *HEAD,
        Column("acceptance", "Acceptance", text=True),
        Column("first_token", "First token (s)", decimals=3, spread=True),
        Column("decode", "Decoding, tokens/s", spread=True),
        Column("width", "Columns/forward"),
        Column("gflops", "GFLOP/s", spread=True),
        Column("gflops_share", "of ceiling (%)"),
        Column("gbytes", "GB/s", decimals=2, spread=True),
        Column("gbytes_share", "of its ceiling (%)"),
        Column("nearer", "Nearer ceiling", text=True),
        Column("predicted", "Predicted (s)", decimals=3),
        Column("predicted_vs_ar", "Predicted vs our AR", decimals=2),
        Column("vs_ar", "Measured vs our AR", decimals=2, spread=True),
        Column("of_predicted", "Measured ÷ predicted", decimals=2),
        Column("memory", "Peak memory (MB)", decimals=0),
    ]
    notes = [
        repeats(study),
        "First token is the time in which a batch yields one token, in a run of its own that ends "
        "there; decoding is what follows it. Columns/forward are those that go through the model "
        "in one forward of the batch, prompts and padding included.",
        _ceilings(load_throughput(study, results)),
        "FLOP and bytes are counted from the work done: matrix products and attention; weights, "
        "and keys and values of the cache. What a forward costs beyond them (dispatch, copies of "
        "the cache, memory moved between operations) lowers both shares. The nearer ceiling is "
        "the one with the larger share: arithmetic, or memory traffic.",
        "Predicted is what the ceilings allow: the work's FLOP or its bytes, whichever takes "
        "longer at its ceiling; the speedup over our AR that follows from it stands beside the "
        "measured one. Measured ÷ predicted below 1: this method's forwards stay further from "
        "the ceilings than our AR's.",
        "On a CPU, peak memory is of the method's own tensors, counted in a pass that is not "
        "timed: weights, cache and activations of its longest batch. On a GPU it is all that "
        "PyTorch holds there, the other methods' weights included.",
    ]
    title = "Wall-clock: prefill, decoding and the machine's ceilings"
    return Table("roofline", title, columns, sections or [Section(title)], notes)


def _achieved(grid: Grid, setting: Setting, replayed: bool) -> dict[str, Any]:
    width = grid.per("model_tokens", "model_forwards", setting)
    memory = grid.of("peak_memory_mb", setting)
    ar = grid.find(AR, setting.batch_size)
    predicted = grid.of("roofline_seconds", setting)
    ahead = grid.ratio("roofline_seconds", ar, setting)
    reached = grid.ratio("of_roofline", setting, ar)
    flops, bytes_read = (grid.share(c, setting) for c in ("gflops_per_s", "gbytes_per_s"))
    return {
        "model": LABELS[setting.method],
        "cache_block": setting.cache_block,
        "batch_size": setting.batch_size,
        "acceptance": REPLAYED if replayed else "model",
        "first_token": grid.of("first_token_seconds", setting),
        "decode": grid.of("decode_tokens_per_s", setting),
        "width": width and width.value,
        "gflops": grid.of("gflops_per_s", setting),
        "gflops_share": flops and flops.value,
        "gbytes": grid.of("gbytes_per_s", setting),
        "gbytes_share": bytes_read and bytes_read.value,
        "nearer": _nearer(flops, bytes_read),
        "predicted": predicted and predicted.value,
        "predicted_vs_ar": ahead and ahead.value,
        "vs_ar": grid.speedup(setting, ar),
        "of_predicted": reached and reached.value,
        "memory": memory and memory.value,
    }


def _nearer(flops: Repeated | None, bytes_read: Repeated | None) -> str | None:
    if flops is None or bytes_read is None:
        return None
    return "arithmetic" if flops.value >= bytes_read.value else "memory"


def _ceilings(runs: pd.DataFrame) -> str:
    peaks = runs[["peak_gflops_per_s", "peak_gbytes_per_s"]].median()
    if peaks.isna().any():
        return "The machine's ceilings were not measured."
    flops, bytes_read = peaks
    return (
        f"The machine's ceilings, measured on it beside the grid: {flops:.4g} GFLOP/s and "
        f"{bytes_read:.4g} GB/s."
    )
