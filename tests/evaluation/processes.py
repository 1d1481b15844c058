"""Which processes run below another, whether they have ended, and what they hold and used."""

from __future__ import annotations

import os
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


def open_files(pid: int) -> int:
    """How many files a process has open; -1 where only root is told, as of the sandbox's server."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:
        return -1


def cpu_seconds(pids: set[int]) -> float:
    """CPU time of processes, those that ended below them counted."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
