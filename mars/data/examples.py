"""Encoded conversations in flat arrays: what is cached, and what training reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import torch

from mars.data.encoding import Encoded, RowError

ARRAYS = {"ids": np.int32, "turn": np.int32, "end": np.int64, "ended": np.bool_, "row": np.int64}
"""The arrays of a table, and the type of each."""


@dataclass
class Dropped:
    """Rows left out for one kind of fault: how many, and the first of them."""

    count: int
    first: int
    message: str


@dataclass
class Report:
    """What became of the rows that were read, bad ones by kind of fault, commonest first."""

    rows: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def drop(self, row: int, error: RowError) -> None:
        """Count one bad row."""
        found = self.dropped.setdefault(error.kind, Dropped(0, row, str(error)))
        found.count += 1

    @property
    def lost(self) -> int:
        """How many rows were left out."""
        return sum(found.count for found in self.dropped.values())

    def kinds(self) -> list[tuple[str, Dropped]]:
        """Every kind of fault, commonest first."""
        return sorted(self.dropped.items(), key=lambda item: (-item[1].count, item[0]))

    def as_json(self) -> dict[str, Any]:
        """Plain values: ``rows`` and, by kind, ``count``, ``first`` and ``message``."""
        dropped = {kind: vars(found) for kind, found in self.kinds()}
        return {"rows": self.rows, "dropped": dropped}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Report:
        """The report that ``as_json`` wrote."""
        return cls(values["rows"], {k: Dropped(**v) for k, v in values["dropped"].items()})


@dataclass(frozen=True)
class Table:
    """N encoded conversations of T tokens in all.

    Attributes:
        ids, turn: (T,) int32, as in Encoded, one conversation after the other.
        end: (N,) int64; where each conversation ends in them.
        ended: (N,) bool, as in Encoded.
        row: (N,) int64; the row of the source it was.
        report: what became of the other rows.
    """

    ids: np.ndarray
    turn: np.ndarray
    end: np.ndarray
    ended: np.ndarray
    row: np.ndarray
    report: Report

    @classmethod
    def of(cls, examples: Sequence[Encoded], rows: Sequence[int], report: Report) -> Table:
        """The table of encoded conversations, and of the rows that they were."""
        ids = [example.ids.numpy() for example in examples]
        turn = [example.turn.numpy() for example in examples]
        return cls(
            ids=_joined(ids, "ids"),
            turn=_joined(turn, "turn"),
            end=np.cumsum([len(part) for part in ids], dtype=ARRAYS["end"]),
            ended=np.array([example.ended for example in examples], ARRAYS["ended"]),
            row=np.array(rows, ARRAYS["row"]),
            report=report,
        )

    @classmethod
    def join(cls, tables: Sequence[Table], report: Report) -> Table:
        """Tables one after the other."""
        starts = np.cumsum([0, *(len(table.ids) for table in tables)])
        ends = [table.end + start for table, start in zip(tables, starts, strict=False)]
        parts = {name: [getattr(table, name) for table in tables] for name in ARRAYS}
        parts["end"] = ends
        return cls(**{name: _joined(parts[name], name) for name in ARRAYS}, report=report)

    def __len__(self) -> int:
        return len(self.end)

    def __getitem__(self, index: int) -> Encoded:
        start = int(self.end[index - 1]) if index else 0
        stop = int(self.end[index])
        turn = torch.from_numpy(self.turn[start:stop].astype(np.int64))
        ids = torch.from_numpy(self.ids[start:stop].astype(np.int64))
        return Encoded(ids, turn >= 0, turn, bool(self.ended[index]))

    def lengths(self) -> np.ndarray:
        """(N,) tokens of each conversation."""
        return np.diff(self.end, prepend=0)

    def response_lengths(self) -> np.ndarray:
        """(N,) tokens with loss of each conversation."""
        before = np.concatenate([[0], np.cumsum(self.turn >= 0)])
        return np.diff(before[self.end], prepend=0)

    def responses(self) -> np.ndarray:
        """(N,) responses of each conversation, which ends with its last."""
        return self.turn[self.end - 1].astype(np.int64) + 1


def _joined(parts: Sequence[np.ndarray], name: str) -> np.ndarray:
    empty: np.ndarray = np.zeros(0, ARRAYS[name])
    return np.concatenate([empty, *parts]).astype(ARRAYS[name], copy=False)


class Examples(Sequence[Encoded]):
    """Examples in the study's order, each made from the flat arrays when it is asked for.

    Args:
        table: where they lie.
        order: the places in it, in order.
    """

    def __init__(self, table: Table, order: Sequence[int] | np.ndarray) -> None:
        self.table = table
        self.order = np.asarray(order, dtype=np.int64)

    @property
    def report(self) -> Report:
        """What became of the rows that are no examples."""
        return self.table.report

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Encoded | Examples:
        if isinstance(index, slice):
            return Examples(self.table, self.order[index])
        return self.table[int(self.order[index])]

    def __iter__(self) -> Iterator[Encoded]:
        return (self.table[int(place)] for place in self.order)

    def lengths(self) -> np.ndarray:
        """(N,) tokens of each example, without making any."""
        return self.table.lengths()[self.order]
