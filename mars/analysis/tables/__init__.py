"""Every table of a study, by name. A new table is one builder and one line in the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mars.analysis.render import Table, write_text
from mars.analysis.tables import (
    arrivals,
    glance,
    jacobi,
    overhead,
    quality,
    replay,
    rules,
    wall_clock,
)
from mars.config import Study

Builder = Callable[[Study, Path], Table]

TABLES: dict[str, Builder] = {
    "glance": glance.glance,
    "table2": quality.one_token,
    "table3": quality.block_size,
    "table4": quality.multi_token,
    "table5": wall_clock.wall_clock,
    "roofline": wall_clock.roofline,
    "replay": replay.replay,
    "batching": replay.batching,
    "arrivals": arrivals.arrivals,
    "training_overhead": overhead.training_overhead,
    "jacobi": jacobi.jacobi,
    "acceptance": rules.acceptance,
    "chance": rules.chance,
    "calibration": rules.calibration,
}
"""In the order of the report."""


def build(name: str, study: Study, results: Path) -> Table:
    """One table of a study, from whatever results exist."""
    if name not in TABLES:
        raise ValueError(f"unknown table {name!r}; choose from {', '.join(TABLES)}")
    return TABLES[name](study, results)


def write_table(name: str, study: Study, results: Path, out: Path) -> list[Path]:
    """Write ``<out>/<name>.csv`` and ``<out>/<name>.md`` and return both paths.

    Both are always written: a table without results has its header and its notes only.
    """
    table = build(name, study, results)
    return [
        write_text(out / f"{name}.csv", table.csv()),
        write_text(out / f"{name}.md", table.markdown()),
    ]
