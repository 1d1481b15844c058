"""What a reader wants at once: medians and spread of each method, and its ratio to fair AR."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def lines(name: str, batch_size: int, rows: Sequence[Row]) -> list[str]:
    """One line a method of a stage."""
    found = next(iter(summary(rows).values()))[str(batch_size)] if rows else {}
    return [
        f"{name}, {batch_size} rows, {method}: {made['seconds']:.2f} s "
        f"({made['seconds_spread'][0]:.2f}–{made['seconds_spread'][1]:.2f}), "
        f"{made['tokens_per_s']:.0f} tokens/s, "
        f"{made['tokens_per_forward']:.2f} tokens per forward"
        + (f", {made['times_ar']:.2f} × ar" if made["times_ar"] else "")
        for method, made in found.items()
    ]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Stage → batch size → method → medians over the repeats.

    ``times_ar`` is the tokens/s over those of our AR decoder, taken within each repeat.
    """
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        stage = f"{row['part']} {row['acceptance']}"
        group = groups.setdefault((stage, str(row["batch_size"])), {})
        group.setdefault(name_of(row), []).append(row)
    made: dict[str, Any] = {}
    for (stage, size), methods in groups.items():
        base = {row["repeat"]: row["tokens_per_s"] for row in methods.get("ar", [])}
        made.setdefault(stage, {})[size] = {
            name: _medians(runs, base) for name, runs in methods.items()
        }
    return made


def name_of(row: Row) -> str:
    """A name of the row's method: what of its settings tells it from the others."""
    parts = [str(row["method"])]
    if row["method"] == "mars":
        parts.append(str(row["cache"]))
    parts += [str(row["cache_block"])] if row["cache_block"] else []
    parts += ["auto"] if row["draft"] == "auto" else []
    parts += [f"tau{row['tau']:g}"] if row["tau"] else []
    # our engine batches continuously, but where that itself is measured
    parts += ["static"] if row["cache"] == "cursor" and row["scheduling"] == "static" else []
    return "_".join(parts)


def _medians(runs: Sequence[Row], base: dict[int, float]) -> dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    ratios = [run["tokens_per_s"] / base[run["repeat"]] for run in runs if run["repeat"] in base]
    return {
        "runs": len(runs),
        "seconds": round(statistics.median(seconds), 4),
        "seconds_spread": [min(seconds), max(seconds)],
        "first_token_seconds": round(statistics.median(r["first_token_seconds"] for r in runs), 5),
        "tokens_per_s": round(statistics.median(r["tokens_per_s"] for r in runs), 2),
        "tokens_per_forward": round(statistics.median(r["tokens_per_forward"] for r in runs), 4),
        "times_ar": round(statistics.median(ratios), 3) if ratios else None,
    }
