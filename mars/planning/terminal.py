"""A plan as a page for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mars.planning.cost import Plan, Stage


def show(plan: Plan, console: Console) -> None:
    """Print a plan: a row a rule, totals by unit of hours, and where the numbers come from."""
    table = Table(title=f"study {plan.study}, on {plan.device}", title_justify="left")
    table.add_column("rule")
    for name in ("jobs", "done", "hours", "still", "disk"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    figures = [stage for stage in plan.stages if stage.rule.startswith("figure_")]
    for stage in plan.stages:
        if stage not in figures:
            table.add_row(*_row(stage))
        elif stage is figures[0]:
            table.add_row(*_row(total(figures, "figure_…", stage.unit)))
    table.add_section()
    for unit in dict.fromkeys(stage.unit for stage in plan.stages):
        mine = [stage for stage in plan.stages if stage.unit == unit]
        table.add_row(*_row(total(mine, "all", unit)))
    console.print(table)
    made = f"{plan.checkpoints} checkpoints, {plan.checkpoints_done} of them there"
    console.print(f"{made}; the largest run holds {size(plan.training_disk)} while it trains")
    for note in plan.notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def total(stages: list[Stage], name: str, unit: str) -> Stage:
    """The sum of stages whose hours have one unit."""
    return Stage(
        name,
        sum(stage.jobs for stage in stages),
        sum(stage.done for stage in stages),
        sum(stage.hours for stage in stages),
        sum(stage.remaining_hours for stage in stages),
        sum(stage.disk for stage in stages),
        unit,
    )


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _row(stage: Stage) -> list[str]:
    hours, still = map(_hours, (stage.hours, stage.remaining_hours))
    disk = size(stage.disk) if stage.disk else ""
    return [stage.rule, str(stage.jobs), str(stage.done), hours, still, disk, stage.unit]


def _hours(value: float) -> str:
    if value < 0.005:
        return "<0.01" if value else "0"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"
