"""What a reader wants at once: medians and spread of each method, and what it is worth.

Ratios are those of the tables (``mars/analysis/speed.py``): taken within each repeat, their median
reported. A test holds the two to each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Runs = Mapping[str, Sequence[Row]]
"""The runs of a stage and batch size, by ``name_of`` their method."""

OPPONENTS = ("generate", "generate_static", "ar")
"""The autoregressive methods: every speedup is over the fastest of them."""


def lines(name: str, batch_size: int, rows: Sequence[Row]) -> list[str]:
    """One line a method of a stage."""
    return [
        f"{name}, {batch_size} rows, {method}: {made['seconds']:.2f} s "
        f"({made['seconds_spread'][0]:.2f}–{made['seconds_spread'][1]:.2f}), "
        f"{made['tokens_per_s']:.0f} tokens/s, "
        f"{made['tokens_per_forward']:.2f} tokens per forward"
        + (f", {made['speedup']:.2f} × {made['over']}" if "speedup" in made else "")
        + "".join(f", {made[key]:.2f} × {said}" for key, said in _SAID.items() if key in made)
        for method, made in _of_methods(rows).items()
    ]


_SAID = {
    "vs_ar": "ar",
    "vs_better": "the better of ar and full drafts",
    "continuous_vs_static": "static batching",
}
"""Ratios that a line of progress has beside the speedup."""


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Stage → batch size → method → medians over the repeats.

    ``speedup`` is over the fastest autoregressive method, which ``over`` names; ``efficiency`` is
    that speedup in tokens/s ÷ tokens per forward. ``vs_…`` are speedups over one method each:
    ``generate`` with its dynamic and its static cache, our AR decoder, the algorithm as released,
    and, of draft auto, the better of our AR decoder and full drafts.
    """
    stages: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        sizes = stages.setdefault(f"{row['part']} {row['acceptance']}", {})
        sizes.setdefault(str(row["batch_size"]), []).append(row)
    return {
        stage: {size: _of_methods(mine) for size, mine in sizes.items()}
        for stage, sizes in stages.items()
    }


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


def _of_methods(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What is said of each method of a stage and batch size."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(name_of(row), []).append(row)
    return {name: _medians(mine) | _ratios(name, runs) for name, mine in runs.items()}


def _medians(runs: Sequence[Row]) -> dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    return {
        "runs": len(runs),
        "seconds": round(statistics.median(seconds), 4),
        "seconds_spread": [min(seconds), max(seconds)],
        "first_token_seconds": round(statistics.median(r["first_token_seconds"] for r in runs), 5),
        "tokens_per_s": round(statistics.median(r["tokens_per_s"] for r in runs), 2),
        "tokens_per_forward": round(statistics.median(r["tokens_per_forward"] for r in runs), 4),
    }


def _ratios(name: str, runs: Runs) -> dict[str, Any]:
    """A method's ratios to the others of its stage and batch size that were measured."""
    mine, row = runs[name], runs[name][0]
    same = {other: found[0] for other, found in runs.items() if found[0]["tau"] == row["tau"]}
    full, static = name_of({**row, "draft": "B"}), name_of({**row, "scheduling": "static"})
    bases: dict[str, str | None] = {
        "speedup": _fastest(
            [other for other in runs if runs[other][0]["method"] in OPPONENTS], runs
        ),
        "vs_generate": "generate",
        "vs_generate_static": "generate_static",
        "vs_ar": "ar",
        "vs_released": next((n for n, one in same.items() if one["method"] == "released"), None),
    }
    if row["draft"] == "auto":
        bases["vs_better"] = _fastest([n for n in ("ar", full) if n in runs], runs)
    found: dict[str, Any] = {
        key: round(_ratio("seconds", runs[base], mine), 3)
        for key, base in bases.items()
        if base is not None and base in runs
    }
    if fastest := bases["speedup"]:
        forwards = statistics.median(run["tokens_per_forward"] for run in mine)
        gain = _ratio("tokens_per_s", mine, runs[fastest])
        found |= {"over": fastest, "efficiency": round(gain / forwards, 3)}
    if row["scheduling"] == "continuous" and static in runs:
        found["continuous_vs_static"] = round(_ratio("tokens_per_s", mine, runs[static]), 3)
    return found


def _fastest(names: Sequence[str], runs: Runs) -> str | None:
    """The one that no other is faster than, by the ratios that are reported."""

    def behind(name: str) -> float:
        return max(_ratio("seconds", runs[name], runs[other]) for other in names)

    return min(names, key=behind, default=None)


def _ratio(column: str, above: Iterable[Row], below: Iterable[Row]) -> float:
    """The median over the repeats of a column of one method over that of another."""
    base = {run["repeat"]: run[column] for run in below}
    return statistics.median(run[column] / base[run["repeat"]] for run in above)
