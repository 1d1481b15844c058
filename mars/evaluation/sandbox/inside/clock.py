"""How long a program may take: in CPU time, so that a busy machine makes no right program wrong."""

from __future__ import annotations

import os
import select
import time

PATIENCE = 30.0
"""Wall-clock time is limited to this many times the limit on CPU time,"""
IDLE = 4.0
"""and time in which nothing is computed, as in a sleep, to this many times."""
SHORTEST_S = 0.01
PROGRESS_S = 0.001


def read_report(descriptor: int, pids: tuple[int, ...], seconds: float, most: int) -> bytes | None:
    """What is written until the end of the stream, or None where that takes too long.

    Args:
        descriptor: of the pipe to read.
        pids: the processes that work on it.
        seconds: limit on their CPU time together.
        most: bytes; what is longer is not read on.
    """
    said = b""
    now, worked = time.monotonic(), 0.0
    end, idle_end = now + PATIENCE * seconds, now + IDLE * seconds
    while len(said) < most:
        now, spent = time.monotonic(), cpu_seconds(pids)
        if spent > worked + PROGRESS_S:  # however slowly: others may have the processor
            worked, idle_end = spent, now + IDLE * seconds
        left = min(end - now, idle_end - now, seconds - spent)
        if left <= 0:
            return None
        # Two at work use up their time twice as fast.
        if select.select([descriptor], [], [], max(left / len(pids), SHORTEST_S))[0]:
            piece = os.read(descriptor, most)
            if not piece:
                break
            said += piece
    return said


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """CPU time of processes, their threads counted; 0 where the system does not tell."""
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3) of Linux
        except OSError:  # it has ended
            continue
    return total
