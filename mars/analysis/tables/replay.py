"""Speed at equal acceptance: the grid replayed, and continuous against static batching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.speed import (
    AR,
    AUTO,
    CURSOR,
    LABELS,
    RELEASED,
    REPLAYED,
    Grid,
    Setting,
    load_batching,
    load_grid,
    prompts_decoded,
)
from mars.analysis.tables.wall_clock import (
    EFFICIENCY,
    FORWARDS,
    HEAD,
    PROMPTS,
    RATIOS,
    TIMING,
    repeats,
    timing,
)
from mars.config import Study

ACCEPTANCE = Column("acceptance", "Acceptance", text=True)
NO_QUALITY = (
    "Replayed acceptance: how many tokens each step accepts is drawn once{lengths}, and forced on "
    "every method alike, whatever the model predicts. It compares caches at equal acceptance; no "
    "quality is measured."
)


def replay(study: Study, results: Path) -> Table:
    """The grid at replayed acceptance, with the ratios that it is there for."""
    grid = load_grid(study, results, None)
    rows: list[Row] = [{**timing(grid, s), **_against(grid, s)} for s in grid.settings]
    columns = [
        HEAD[0],
        ACCEPTANCE,
        *HEAD[1:],
        *TIMING,
        Column("vs_released", "vs as released", decimals=2, spread=True),
        Column("vs_better", "Auto vs better of AR and fixed B", decimals=2, spread=True),
        *FORWARDS,
    ]
    notes = [NO_QUALITY.format(lengths="")]
    made = study.throughput
    if made and made.replay:
        notes.append(
            f"{made.variant} of {made.scale}, {prompts_decoded(made)}, "
            f"{made.replay.max_new_tokens} new tokens each, "
            f"{made.replay.tokens_per_forward:g} tokens per forward on average with full drafts. "
            "A block cache accepts fewer of the same draws, as it cuts a draft at its block's end, "
            "and so may draft auto, which drafts less."
        )
    notes += [
        repeats(study),
        RATIOS,
        "'vs as released' is over the paper's algorithm as its authors released it, which copies "
        "the cache at each step. The last ratio is that of draft auto to the faster of our AR "
        "loop and the cursor cache with full drafts: below 1, the choice of the draft's length "
        "cost more than it gained.",
        EFFICIENCY,
    ]
    title = f"Wall-clock speed at {REPLAYED}"
    return Table("replay", title, columns, [Section(title, rows)], notes)


def _against(grid: Grid, setting: Setting) -> dict[str, Any]:
    batch = setting.batch_size
    found = {
        "acceptance": REPLAYED,
        "vs_released": grid.speedup(setting, grid.find(RELEASED, batch)),
    }
    if setting.method == AUTO:
        better = grid.fastest([grid.find(AR, batch), grid.find(CURSOR, batch)])
        found["vs_better"] = grid.speedup(setting, better)
    return found


def batching(study: Study, results: Path) -> Table:
    """Continuous against static batching, for AR and MARS."""
    grid = load_batching(study, results)
    timed = (s for s in grid.settings if s.method == AR and s.scheduling == "continuous")
    ours = next(timed, None)
    rows: list[Row] = []
    for static in (s for s in grid.settings if s.scheduling == "static"):
        continuous = static._replace(scheduling="continuous")
        if continuous not in grid.settings:
            continue
        forwards = grid.of("tokens_per_forward", continuous)
        rows.append(
            {
                "model": LABELS[static.method],
                "acceptance": REPLAYED,
                "slots": static.batch_size,
                "prompts": grid.prompts(static),
                "static": grid.of("tokens_per_s", static),
                "continuous": grid.of("tokens_per_s", continuous),
                "ratio": grid.ratio("tokens_per_s", continuous, static),
                "vs_ar": grid.speedup(continuous, ours),
                "static_seconds": grid.of("seconds", static),
                "continuous_seconds": grid.of("seconds", continuous),
                "tokens_per_forward": forwards and forwards.value,
            }
        )
    columns = [
        HEAD[0],
        ACCEPTANCE,
        Column("slots", "Slots", text=True),
        PROMPTS,
        Column("static", "Static, tokens/s", spread=True),
        Column("continuous", "Continuous, tokens/s", spread=True),
        Column("ratio", "Continuous ÷ static", decimals=2, spread=True),
        Column("vs_ar", "Continuous vs our AR", decimals=2, spread=True),
        Column("static_seconds", "Static (s)", decimals=2, spread=True),
        Column("continuous_seconds", "Continuous (s)", decimals=2, spread=True),
        Column("tokens_per_forward", "Tokens/forward", decimals=2),
    ]
    notes = [NO_QUALITY.format(lengths=", and so is the length of each response")]
    made = study.throughput
    if made and made.continuous:
        at = made.continuous
        notes.append(
            f"{at.requests} requests, {at.slots} in flight, {at.shortest} to {at.longest} new "
            "tokens (log-uniform). Static: the next batch starts when the last row of this one "
            "ends; continuous: a row that ends gives its slot to the next request. Responses "
            "differ in length here, as real ones do. Where all are as long (the table before), "
            "rows of AR begin and end together and share their prefills, which rows with drafts "
            "cannot."
        )
    notes.append(repeats(study))
    title = f"Continuous against static batching, at {REPLAYED} and lengths"
    return Table("batching", title, columns, [Section(title, rows)], notes)
