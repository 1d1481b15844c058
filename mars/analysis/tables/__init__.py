"""Every table of a study, by name. A new table is one builder and one line in the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mars.analysis.latex import latex
from mars.analysis.parts import COMPARED
from mars.analysis.render import Table, write_text
from mars.analysis.tables import (
    arrivals,
    claims,
    forms,
    glance,
    jacobi,
    overhead,
    profile,
    quality,
    replay,
    rules,
    wall_clock,
)
from mars.config import Study

Builder = Callable[[Study, Path], Table]

TABLES: dict[str, Builder] = {
    "claims": claims.claims,
    "glance": glance.glance,
    "table2": quality.one_token,
    "table3": quality.block_size,
    "table4": quality.multi_token,
    "table5": wall_clock.wall_clock,
    "roofline": wall_clock.roofline,
    "profile": profile.profile,
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


def write_table(
    name: str, study: Study, results: Path, out: Path, intervals: bool = False
) -> list[Path]:
    """Write ``<out>/<name>.csv``, ``.md`` and ``.tex`` and return their paths.

    All are always written: a table without results has its header and its notes only. Where the
    paper has the table too, its forms are written beside it (``<name>.ours.csv`` and so on).

    Args:
        intervals: whether the LaTeX has the 95 % interval of each estimate.
    """
    table = build(name, study, results)
    compared = forms.forms(table, study, results) if name in COMPARED else {}
    written = []
    for each in (table, *compared.values()):
        texts = {"csv": each.csv(), "md": each.markdown(), "tex": latex(each, intervals)}
        written += [write_text(out / f"{each.name}.{end}", text) for end, text in texts.items()]
    return written
