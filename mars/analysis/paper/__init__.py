"""The paper's numbers (arXiv 2604.07023, CC BY 4.0), as printed; none of it measured by us."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

FOLDER = Path(__file__).parent

TABLES = {
    "table2": "table2_one_token.csv",
    "table3": "table3_block_size.csv",
    "table4": "table4_multi_token.csv",
    "table5": "table5_wall_clock.csv",
}

COLUMNS = ("IFEval", "BBH", "MMLU-Pro", "GPQA", "GSM8K", "HumanEval")
"""The paper's benchmarks in its column order; its Avg is their plain mean."""

CREDIT = "arXiv 2604.07023 (Jin, Wang, Luo, Sun), CC BY 4.0"


@cache
def _table(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / TABLES[name])


def table(name: str) -> pd.DataFrame:
    """One of the paper's tables (``table2`` … ``table5``), rows in its order."""
    return _table(name).copy()


@cache
def facts() -> dict[str, Any]:
    """What the paper says in prose, as nested mappings (see ``facts.yaml``)."""
    return yaml.safe_load((FOLDER / "facts.yaml").read_text(encoding="utf-8"))


def scores(
    table_name: str, scale: str | None, model: str, block_size: int | None
) -> dict[str, float] | None:
    """The paper's scores of one model, by column (``Avg`` included); None where it has none.

    Args:
        table_name: ``table2`` or ``table3``.
        scale: the paper's scale, e.g. ``0.5B``.
        model: the paper's label without its epochs, e.g. ``AR SFT`` or ``AR SFT (10 ep)``.
        block_size: the paper's B; None for autoregressive rows.
    """
    rows = _table(table_name)
    names = rows["model"].str.replace(" (5 ep)", "", regex=False)
    found = rows[(rows["scale"] == scale) & (names == model)]
    sizes = found["block_size"]
    found = found[sizes.isna() if block_size is None else sizes == block_size]
    if found.empty:
        return None
    return {c: float(found.iloc[0][c]) for c in (*COLUMNS, "Avg")}


def multi_token(
    scale: str | None, block_size: int, tau: float, row: str
) -> dict[str, float] | None:
    """A row of Table 4: ``row`` is ``accuracy`` or ``tokens_per_forward``."""
    rows = _table("table4")
    found = rows[
        (rows["scale"] == scale)
        & (rows["block_size"] == block_size)
        & (rows["tau"] == tau)
        & (rows["row"] == row)
    ]
    if found.empty:
        return None
    return {c: float(found.iloc[0][c]) for c in (*COLUMNS, "Avg")}


def signal_fraction(model: str, block_size: int | None) -> float | None:
    """The AR signal fraction that Table 3 prints for a model."""
    rows = _table("table3")
    sizes = rows["block_size"]
    same = sizes.isna() if block_size is None else sizes == block_size
    found = rows.loc[(rows["model"] == model) & same, "ar_signal_fraction"]
    return None if found.empty else float(found.iloc[0])
