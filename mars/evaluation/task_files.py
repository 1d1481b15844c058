"""lm-eval's task files: found by name, and read with changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind

from mars.evaluation.real import PACKAGED
from mars.evaluation.source import EvaluationError

EMBEDDED_TASKS = Path(__file__).parent / "tasks" / "embedded"


def task_manager(names: Sequence[str], include_path: Sequence[str | Path]) -> TaskManager:
    """A task manager that knows the names; all of lm-eval's tasks are read only where needed.

    Raises:
        EvaluationError: no such task.
    """
    packaged = [Path(lm_eval.tasks.__path__[0]) / folder for folder in PACKAGED]
    for paths, whole in (
        ([EMBEDDED_TASKS, *include_path], False),
        ([*packaged, EMBEDDED_TASKS, *include_path], False),
        ([EMBEDDED_TASKS, *include_path], True),
    ):
        manager = TaskManager(include_path=paths, include_defaults=whole)
        if set(names) <= set(manager.all_tasks):
            return manager
    for name in names:
        if name not in manager.task_index:
            near = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`mars lm-eval ls tasks` lists them"
            raise EvaluationError(f"evaluation.benchmarks.{name}: no such lm-eval task; {hint}")
    return manager


def leaves(manager: TaskManager, name: str) -> Iterator[dict[str, Any]]:
    """The configuration of a task, or of every task of a group, as its file has it."""
    entry = manager.task_index.get(name)
    if entry is None or not entry.cfg:
        return
    members = entry.cfg.get("task")
    if not isinstance(members, list):
        yield entry.cfg
        return
    for member in members:
        if isinstance(member, str):
            yield from leaves(manager, member)
        elif known := member.get("task", member.get("group")):
            of_its_own = {
                key: value for key, value in member.items() if key not in ("task", "group")
            }
            for leaf in leaves(manager, known) if isinstance(known, str) else ():
                yield leaf | of_its_own


def load_task(manager: TaskManager, name: str, changes: dict[str, Any]) -> Any:
    """What ``TaskManager.load`` gives for a name, its task (or all of its group's) changed."""
    if not changes:
        return manager.load([name])
    kind = "group" if name in manager.all_groups else "task"
    around = "changed"  # members of a group take changes, a task of its own does not
    members = {"group": around, "task": [{kind: name, **changes}]}
    manager.task_index[around] = Entry(around, Kind.GROUP, yaml_path=None, cfg=members)
    loaded: Any = manager.load([around])
    for part in ("groups", "group_map"):
        loaded[part].pop(around)
    return loaded
