"""The table of rates that costs are reckoned with: ``rates.yaml``, and what the user knows better.

A rate says where it comes from, and so does every figure made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("rates.yaml")


class PlanError(ValueError):
    """Nothing to reckon with; the message is one line for the user."""


@dataclass(frozen=True)
class Device:
    """What one device does.

    Attributes:
        name: as in the table.
        hours: the unit of its hours, core-hours or GPU-hours.
        training_flops: floating-point operations a second achieved in training.
        decoding_flops: in evaluation.
        forward_seconds: the least a decoding step takes.
        source: measured with what, or assumed.
    """

    name: str
    hours: str
    training_flops: float
    decoding_flops: float
    forward_seconds: float
    source: str


@dataclass(frozen=True)
class Rates:
    """The whole table, and the device chosen from it."""

    device: Device
    table: dict[str, Any]

    def example(self, source: str, max_length: int) -> tuple[float, float, str]:
        """Tokens of a training example, the response's share, and where both come from."""
        made = self.table["examples"].get(source)
        if made is not None:
            return made["tokens"], made["response"], f"measured, {source}"
        share = self.table["examples"]["other"]["response"]
        told = f"at most {max_length} tokens an example, {share:.0%} of them the response's"
        return max_length, share, f"{told} (assumed)"

    def documents(self, benchmark: str, limit: int | None) -> int:
        """Documents of a benchmark, no more than ``limit`` of each of its sub-tasks."""
        made = self.table["benchmarks"].get(benchmark, {})
        parts = made.get("subtasks", 1)
        count = made.get("documents", self.table["documents"])
        return count if limit is None else min(count, limit * parts)

    def answer(self, benchmark: str, budget: int | str) -> float:
        """Tokens of an answer: measured, or the budget."""
        most = self.table["budget"] if budget == "task" else int(budget)
        return min(self.table["benchmarks"].get(benchmark, {}).get("tokens", most), most)

    def seconds(self, job: str) -> float:
        """Core-seconds of a job without a model."""
        kind = "figure" if job.startswith("figure_") else job
        return self.table["seconds"].get(kind, self.table["seconds"]["other"])


def load_rates(
    device: str, flops: float | None = None, file: str | Path | None = None, table: Path = TABLE
) -> Rates:
    """The table, with the user's own entries, and the device that costs are reckoned for.

    Args:
        device: one of the table's, or of the user's.
        flops: FLOP/s it achieves in training; decoding is scaled alike.
        file: a YAML file of the table's form; its entries replace the table's.

    Raises:
        PlanError: no such device, or a file that cannot be read.
    """
    made = _read(table)
    if file is not None:
        for part, entries in _read(Path(file)).items():
            if part not in made:
                raise PlanError(f"{file}: {part}: unknown; choose from {', '.join(made)}")
            inner = isinstance(made[part], dict)
            made[part] = made[part] | entries if inner else entries
    if device not in made["devices"]:
        raise PlanError(
            f"--device {device}: not in the table; choose from {', '.join(made['devices'])}, or "
            "add it with --rates FILE (docs/clusters.md)"
        )
    try:
        found = Device(device, **made["devices"][device])
    except TypeError as error:
        raise PlanError(f"{file or table}: devices.{device}: {error}") from None
    if flops is not None:
        factor = flops / found.training_flops
        found = replace(
            found,
            training_flops=flops,
            decoding_flops=found.decoding_flops * factor,
            source=f"--flops in training; decoding scaled alike, from: {found.source}",
        )
    return Rates(found, made)


def _read(path: Path) -> dict[str, Any]:
    try:
        made = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(made, dict):
        raise PlanError(f"{path}: expected a mapping such as devices: {{…}}")
    return made
