"""Which processes run below another, and whether they have ended."""

from __future__ import annotations

import time
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """The processes below one, itself not counted."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def ended(pids: set[int], within_s: float = 10.0) -> bool:
    """Whether all of these processes end in time; one that nobody waited for has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        stats = [Path(f"/proc/{pid}/stat") for pid in pids]
        if all(not stat.exists() or ") Z " in stat.read_text() for stat in stats):
            return True
        time.sleep(0.05)
    return False
