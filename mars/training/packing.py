"""Which conversations share a row, which rows a forward, which forwards a process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

Row = list[int]
"""The conversations of a row, by index."""


def pack(
    widths: Sequence[int], row_length: int, draw: np.random.Generator, at_least: int = 1
) -> list[Row]:
    """Conversations in as few rows as best-fit decreasing finds, of about equal width.

    Args:
        widths: columns of each conversation, both streams.
        row_length: columns of a row; a longer conversation has a row of its own.
        draw: puts conversations of equal width in a random order.
        at_least: rows wanted, where there are as many conversations.

    Returns:
        The rows, widest first; every conversation once.
    """
    shuffled = draw.permutation(len(widths))
    order = shuffled[np.argsort(-np.asarray(widths)[shuffled], kind="stable")].tolist()
    rows = _best_fit(widths, row_length, order)
    count = max(len(rows), min(at_least, len(widths)))
    even = _evenly(widths, count, order)
    longest = max(max(widths), row_length)
    if count > len(rows) or max(_width(widths, row) for row in even) <= longest:
        rows = even
    return sorted(rows, key=lambda row: -_width(widths, row))


def _width(widths: Sequence[int], row: Row) -> int:
    return sum(widths[i] for i in row)


def _best_fit(widths: Sequence[int], row_length: int, order: Row) -> list[Row]:
    """Each conversation, longest first, into the fullest row that still takes it."""
    rows: list[Row] = []
    free: list[tuple[int, int]] = []  # (columns left, row), sorted
    for i in order:
        at = bisect_left(free, (widths[i], -1))
        if at == len(free):
            rows.append([i])
            left, row = row_length - widths[i], len(rows) - 1
        else:
            left, row = free.pop(at)
            rows[row].append(i)
            left -= widths[i]
        insort(free, (left, row))
    return rows


def _evenly(widths: Sequence[int], count: int, order: Row) -> list[Row]:
    """Each conversation, longest first, into the row that is least full."""
    rows: list[Row] = [[] for _ in range(count)]
    full = np.zeros(count, dtype=np.int64)
    for i in order:
        row = int(full.argmin())
        rows[row].append(i)
        full[row] += widths[i]
    return [row for row in rows if row]


def micro_batches(widths: Sequence[int], tokens: int, multiple: int = 1) -> list[list[int]]:
    """Rows in forwards of at most ``tokens`` columns, padding included.

    Args:
        widths: of the rows, widest first; a row wider than ``tokens`` has a forward of its own.
        tokens: columns of a forward.
        multiple: more forwards than needed are made until their number is a multiple of this,
            as far as there are rows.
    """
    groups: list[list[int]] = []
    for row in range(len(widths)):
        if groups and (len(groups[-1]) + 1) * widths[groups[-1][0]] <= tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    wanted = min(-(-len(groups) // multiple) * multiple, len(widths))
    while len(groups) < wanted:
        fullest = max(groups, key=len)
        groups.remove(fullest)
        half = len(fullest) // 2
        groups += [fullest[:half], fullest[half:]]
    return groups


def share(groups: Sequence[list[int]], process: int, processes: int) -> list[list[int] | None]:
    """The forwards of one process, as many as every other's; None: nothing to add.

    Processes reduce gradients together, so each has to make a backward pass as often.
    """
    turns = -(-len(groups) // processes)
    return [
        groups[at] if (at := turn * processes + process) < len(groups) else None
        for turn in range(turns)
    ]
