"""What is long about the records: texts, accepted counts, confidences; read on demand.

Each function takes conditions on the columns of :func:`mars.analysis.tidy.load`, a value or a list
of them: ``load_steps("embedded", variant="mars_b4", tau=[0.95, 0.7])``. Only what they leave is
read, so at the size of the paper's benchmarks narrow them down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mars.analysis import tidy
from mars.analysis.columns import Field
from mars.analysis.results import ResultsError, iter_records

WHO = (
    *("study", "seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule"),
    *("cache", "task", "doc_id", "repeat"),
)
"""The columns of the records that say whose step, token or text it is."""

STEP = {
    "forward": Field("int32", "which forward of the answer, from 0 (the prefill)"),
    "accepted": Field("int16", "tokens accepted at it"),
}
"""Columns of :func:`load_steps` beside those of ``WHO``."""

TOKEN = {
    "token": Field("int32", "which kept token of the answer, from 0"),
    "forward": Field("int32", "the forward that it was accepted at, from 0"),
    "offset": Field("int16", "its place among those accepted at that forward, from 0"),
    "confidence": Field("float32", "in it, when it was accepted"),
}
"""Columns of :func:`load_tokens` beside those of ``WHO``."""


def load_generations(study: tidy.Source = "embedded", **where: Any) -> pd.DataFrame:
    """A row per answer: the columns of ``load`` and ``output``, ``accepted``, ``confidence``.

    The last two are NumPy arrays, one entry per forward and per kept token.

    Raises:
        ResultsError: there are no such results.
        ValueError: a condition names a column that records do not have.
    """
    frame, table = _select(study, where)
    lists = {
        name: np.split(*_flat(table.column(name))) if len(frame) else []
        for name in ("accepted", "confidence")
    }
    output = pd.Series(table.column("output").to_pandas().to_numpy(), frame.index)
    return frame.assign(output=output, **{k: pd.Series(v, frame.index) for k, v in lists.items()})


def load_steps(study: tidy.Source = "embedded", **where: Any) -> pd.DataFrame:
    """A row per forward of every answer (columns: ``WHO``, ``STEP``)."""
    frame, table = _select(study, where)
    accepted, lengths = _lengths(table.column("accepted"))
    return _repeat(frame, lengths).assign(
        forward=_count(lengths).astype("int32"), accepted=accepted.astype("int16")
    )


def load_tokens(study: tidy.Source = "embedded", **where: Any) -> pd.DataFrame:
    """A row per kept token of every answer (columns: ``WHO``, ``TOKEN``)."""
    frame, table = _select(study, where)
    accepted, forwards = _lengths(table.column("accepted"))
    confidence, lengths = _lengths(table.column("confidence"))
    if accepted.sum() != len(confidence):
        raise ResultsError(
            f"{frame['records'].iloc[0]}: accepted counts and confidences differ in length; "
            "evaluate it again"
        )
    return _repeat(frame, lengths).assign(
        token=_count(lengths).astype("int32"),
        forward=np.repeat(_count(forwards), accepted).astype("int32"),
        offset=_count(accepted).astype("int16"),
        confidence=confidence.astype("float32"),
    )


# ------------------------------------------------------------------------------------- reading


def _select(study: tidy.Source, where: dict[str, Any]) -> tuple[pd.DataFrame, pa.Table]:
    """The records that conditions leave, and of the same rows what is long about them.

    A record of which neither file is there any more is left out.
    """
    made, results = tidy.locate(study)
    frame = tidy.read(made, results)
    keep = _matching(frame, where)
    names = list(frame["records"].cat.categories[frame["records"].cat.codes[keep].unique()])
    path = results / tidy.GENERATIONS
    if tidy.is_fresh(made, results, path):
        file = pq.ParquetFile(path)
        table = file.read_row_groups(_groups(frame, names), columns=list(tidy.LONG))
    else:
        # a results folder may have been given away with its records only
        names = [name for name in names if (results / name).is_file()]
        keep &= frame["records"].isin(names).to_numpy()
        kinds = {name: tidy.ARROW[field.dtype] for name, field in tidy.LONG.items()}
        parts = [tidy.table(tidy.once(iter_records(results / n)), {}, kinds) for n in names]
        table = pa.concat_tables([pa.schema(kinds).empty_table(), *parts])
    among = frame["records"].isin(names).to_numpy()
    return frame[keep].reset_index(drop=True), table.filter(pa.array(keep[among]))


def _matching(frame: pd.DataFrame, where: dict[str, Any]) -> NDArray[np.bool_]:
    keep = np.ones(len(frame), dtype=bool)
    for name, value in where.items():
        if name not in frame:
            raise ValueError(f"no column {name!r}; choose from {', '.join(tidy.COLUMNS)}")
        wanted = value if isinstance(value, list | tuple | set | frozenset) else [value]
        keep &= frame[name].isin(list(wanted)).to_numpy()
    return keep


def _groups(frame: pd.DataFrame, names: list[str]) -> list[int]:
    """The row groups of records files: they were written in the frame's order."""
    order = {name: i for i, name in enumerate(frame["records"].unique())}
    return sorted(order[name] for name in names)


# ------------------------------------------------------------------------------------- ragged


def _lengths(lists: pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All entries of a column of lists, and how many each list has."""
    whole = lists.combine_chunks()
    lengths = pa.compute.fill_null(pa.compute.list_value_length(whole), 0)
    return whole.flatten().to_numpy(zero_copy_only=False), lengths.to_numpy().astype("int64")


def _flat(lists: pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    entries, lengths = _lengths(lists)
    return entries, np.cumsum(lengths)[:-1]


def _count(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 … n − 1 for each length n, one after the other."""
    lengths = lengths.astype("int64")
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _repeat(frame: pd.DataFrame, lengths: NDArray[np.int64]) -> pd.DataFrame:
    rows = np.repeat(np.arange(len(frame)), lengths)
    return frame[list(WHO)].iloc[rows].reset_index(drop=True)
