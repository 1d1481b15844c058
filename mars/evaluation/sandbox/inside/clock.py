"""How long a program may take: in CPU time, so that a busy machine makes no right program wrong."""

from __future__ import annotations

import os
import select
import time

PATIENCE = 30.0
"""Wall-clock time is limited to this many times the limit on CPU time,"""
IDLE = 2.0
"""and time in which nothing is computed, as in a sleep, to this many times.

`evaluate`'s own `code_eval` ends a program after that limit of wall-clock time, idle or not; twice
that leaves room for a disk that stalls.
"""
SHORTEST_S, TICK_S = 0.01, 0.25
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
    end, worked, idle = time.monotonic() + PATIENCE * seconds, 0.0, 0.0
    while len(said) < most:
        spent = cpu_seconds(pids)
        if spent > worked + PROGRESS_S:  # however slowly: others may have the processor
            worked, idle = spent, 0.0
        left = min(end - time.monotonic(), IDLE * seconds - idle, seconds - spent)
        if left <= 0:
            return None
        # Two at work use up their time twice as fast.
        wait = min(max(left / len(pids), SHORTEST_S), TICK_S)
        if select.select([descriptor], [], [], wait)[0]:
            piece = os.read(descriptor, most)
            if not piece:
                break
            said += piece
        else:
            idle += wait  # not by the clock: where all stand still, this process does too
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
