"""What statistics need of the records: per document, for each file of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mars.analysis.statistics import Floats


@dataclass(frozen=True)
class Documents:
    """The records of one (model, benchmark, decoding), one entry per document, in order of keys."""

    keys: bytes  # digest of sub-tasks and document ids: equal where the documents are the same
    tasks: NDArray[Any]  # sub-task of each, as a number
    scores: Floats  # per cent
    tokens: Floats
    forwards: Floats


class Answers:
    """Documents by records file, made from the frame of all records as they are asked for."""

    def __init__(self, frame: pd.DataFrame) -> None:
        codes = frame["records"].cat.codes.to_numpy()
        starts = np.flatnonzero(np.diff(codes, prepend=-1))  # a file's records lie together
        names = frame["records"].cat.categories[codes[starts]]
        ends = np.append(starts, len(frame))[1:]
        self._rows = {
            str(n): slice(int(a), int(b)) for n, a, b in zip(names, starts, ends, strict=True)
        }
        self._tasks = frame["task"].cat.codes.to_numpy()
        self._ids = frame["doc_id"].to_numpy()
        self._numbers = frame[["score", "tokens", "forwards"]].to_numpy("float64")
        self._made: dict[str, Documents | None] = {}

    def of(self, records: str) -> Documents | None:
        """The documents of a file, made once; None where it is absent or not scored."""
        if records not in self._made:
            self._made[records] = self._documents(records)
        return self._made[records]

    def _documents(self, records: str) -> Documents | None:
        rows = self._rows.get(records)
        if rows is None:
            return None
        numbers = self._numbers[rows]
        scored = ~np.isnan(numbers[:, 0])
        if not scored.any():
            return None
        ids, tasks = self._ids[rows][scored], self._tasks[rows][scored]
        order = np.lexsort((ids, tasks))
        ids, tasks, numbers = ids[order], tasks[order], numbers[scored][order]
        first = np.flatnonzero(np.diff(tasks, prepend=-1) | np.diff(ids, prepend=-1))
        repeats = np.diff([*first, len(ids)])
        # a document that is asked several times is the mean of its answers
        means = np.add.reduceat(numbers, first) / repeats[:, None]
        ids, tasks = ids[first], tasks[first]
        digest = hashlib.blake2b(ids.tobytes() + b"|" + tasks.tobytes(), digest_size=16).digest()
        return Documents(digest, tasks, 100 * means[:, 0], means[:, 1], means[:, 2])
