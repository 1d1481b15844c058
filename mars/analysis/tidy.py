"""Every record of a study as one typed frame, from one Parquet file.

``load("embedded")`` is the way in. ``mars tidy`` (a rule of the workflow) writes the file,
``results/<study>/records.parquet``, and beside it ``generations.parquet`` with what is long: texts,
accepted counts, confidences (``mars.analysis.generations``); ``mars tidy-throughput`` writes
``throughput.parquet``, the runs of the wall-clock grid. Where they are missing, or older than
the records they were made from, records are read from their JSONL files instead: slower, the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mars.analysis import results as res
from mars.analysis.columns import THROUGHPUT, Field
from mars.analysis.render import whole_file
from mars.analysis.results import ResultsError, as_rows, iter_records, load_evaluation
from mars.config import Study, load_study

Source = str | Path | Study | tuple[Study, Path]
"""What names a study's results: its name, their folder, the study itself, or it and its folder."""


COLUMNS: dict[str, Field] = {
    "study": Field("category", "the study's name"),
    "seed": Field("int32", "of training and data"),
    "scale": Field("category", "the scale of the base checkpoint, e.g. toy-s"),
    "variant": Field("category", "what was trained, e.g. mars_b4"),
    "benchmark": Field("category", "e.g. toy_gsm8k"),
    "decoder": Field("category", "ar, mars, block_diffusion, jacobi"),
    "block_size": Field("int16", "B: tokens drafted a step; 1 for ar"),
    "tau": Field("float64", "threshold of acceptance; 1 is one token a step"),
    "rule": Field("category", "what τ is compared with: probability, entropy, margin"),
    "cache": Field("category", "none, block, cursor"),
    "task": Field("category", "lm-eval's task: the benchmark itself, or one of its sub-tasks"),
    "doc_id": Field("int32", "the document's number in its task"),
    "repeat": Field("int16", "0, 1, … where a task asks a document several times"),
    "score": Field("float64", "0 to 1, by the benchmark's primary metric; missing: not scored"),
    "tokens": Field("int32", "kept tokens, end-of-turn included"),
    "forwards": Field("int32", "forwards that the row took part in, prefill included"),
    "truncated": Field("bool", "cut by the token budget or the context"),
    "finish": Field("category", "end_of_turn, stop, budget, context"),
    "seconds": Field("float32", "the row's share of the time it was in flight"),
    "least_confidence": Field(
        "float64", "the confidence of its least certain token; missing: none recorded"
    ),
    "checkpoint": Field("category", "hash of the checkpoint that answered"),
    "max_new_tokens": Field("category", "the budget of new tokens; task: the task's own"),
    "dtype": Field("category", "of the computation"),
    "chat_template": Field("category", "hash of the chat template"),
    "version": Field("category", "of lm-eval's task"),
    "records": Field("category", "file that the record comes from, below the results folder"),
}
"""Columns of :func:`load` and of ``records.parquet``, in order: dtype and meaning."""

LONG: dict[str, Field] = {
    "output": Field("str", "the text that was scored"),
    "accepted": Field("list of int16", "tokens accepted at each forward, in order"),
    "confidence": Field("list of float32", "of each kept token, in order"),
}
"""What ``generations.parquet`` holds beside ``records``, ``task``, ``doc_id`` and ``repeat``."""

KEYS = ("records", "task", "doc_id", "repeat")
OF_FILE = (
    *("study", "seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule"),
    *("cache", "checkpoint", "max_new_tokens", "dtype", "chat_template", "version", "records"),
)
"""Columns that are the same for all records of a file."""

RECORDS, GENERATIONS = "records.parquet", "generations.parquet"
ARROW = {
    "category": pa.dictionary(pa.int32(), pa.string()),
    "str": pa.string(),
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "Int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "list of int16": pa.list_(pa.int16()),
    "list of float32": pa.list_(pa.float32()),
}
MADE_FROM = b"mars_made_from"
"""Key of the Parquet metadata that says which results a file was made from."""

FIRST, SECOND = (
    {name: ARROW[field.dtype] for name, field in columns.items()}
    for columns in (COLUMNS, {**{name: COLUMNS[name] for name in KEYS}, **LONG})
)


# ------------------------------------------------------------------------------------- loading


def load(study: Source = "embedded") -> pd.DataFrame:
    """Every record of a study's finished runs, a row each (columns: ``COLUMNS``).

    Args:
        study: its name, its results folder, or the study itself.

    Raises:
        ResultsError: there are no such results, or one cannot be read; the message is one line.
    """
    made, results = locate(study)
    return read(made, results).copy(deep=False)


def load_throughput(study: Source = "embedded") -> pd.DataFrame:
    """Every run of a study's wall-clock grid, a row each (columns: ``columns.THROUGHPUT``)."""
    frame = res.load_throughput(*locate(study))
    return frame.astype({name: field.dtype for name, field in THROUGHPUT.items()})


def locate(study: Source) -> tuple[Study, Path]:
    """A study and its results folder, found from here or from any folder above; a pair stays so.

    Raises:
        ResultsError: there is none; the message says what makes it.
    """
    if isinstance(study, tuple):
        return study
    if isinstance(study, Study):
        folder = _find(study.study)
        return study, folder or Path("results", study.study)
    given = Path(study)
    folder = given if (given / "config.yaml").is_file() else _find(str(study))
    if folder is None:
        there = sorted(path.parent.name for path in Path("results").glob("*/config.yaml"))
        found = f"there are results of {', '.join(there)}" if there else "there are none of any"
        raise ResultsError(
            f"{given}: no results of such a study ({found}); make them with `snakemake --cores 8 "
            "all --configfile FILE`, FILE being the study's, or name its results folder"
        )
    return load_study(folder / "config.yaml"), folder


def _find(name: str) -> Path | None:
    here = Path.cwd()
    places = (above / "results" / name for above in (here, *here.parents))
    return next((place for place in places if (place / "config.yaml").is_file()), None)


def read(study: Study, results: Path) -> pd.DataFrame:
    """The frame of :func:`load`, shared by its callers: not to be written into."""
    return _read(study.model_dump_json(), results, stamp(study, results))


def stamp(study: Study, results: Path) -> tuple[Any, ...]:
    """Changes whenever a file that the frame comes from does."""
    runs = [path for *_, path in res.files_of_runs(study, results, _CSV)]
    tables = _stats([results / RECORDS, *runs])
    named = _named(study.model_dump_json(), results, tables)
    return tables + _stats([results / name for name in named])


_CSV = "evaluation.csv"


def _stats(paths: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    found = ((path, path.stat()) for path in paths if path.exists())
    return tuple((str(path), s.st_mtime_ns, s.st_size) for path, s in found)


@lru_cache(maxsize=4)
def _named(study_json: str, results: Path, tables: tuple[Any, ...]) -> list[str]:
    frame = load_evaluation(Study.model_validate_json(study_json), results)
    return [name for name in frame["records"] if isinstance(name, str)]


@lru_cache(maxsize=2)
def _read(study_json: str, results: Path, files: tuple[Any, ...]) -> pd.DataFrame:
    study = Study.model_validate_json(study_json)
    if is_fresh(study, results, results / RECORDS):
        table = pq.read_table(results / RECORDS)
    else:
        parts = [first for first, _ in _tables(study, results, long=False)]
        table = pa.concat_tables([pa.schema(FIRST).empty_table(), *parts])
    return _typed(table.to_pandas(), study)


def _typed(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Names in the study's order, where it has one."""
    orders = {
        "scale": list(study.scales),
        "variant": list(study.variants),
        "benchmark": list(study.evaluation.benchmarks),
    }
    for name, order in orders.items():
        frame[name] = frame[name].cat.set_categories(order)
    frame.attrs = {}
    return frame


def files(study: Study, results: Path) -> list[str]:
    """The records files that a study's ``evaluation.csv`` name and that are there, in order."""
    return [row["records"] for row in _rows(study, results)]


def _rows(study: Study, results: Path) -> list[dict[str, Any]]:
    rows = as_rows(load_evaluation(study, results)[[*OF_FILE]])
    named = (row for row in rows if isinstance(row["records"], str))
    return [row for row in named if (results / row["records"]).is_file()]


# ------------------------------------------------------------------------------------ freshness


def is_fresh(study: Study, results: Path, path: Path) -> bool:
    """Whether a Parquet file was made from the very results that are there now.

    It was if every ``evaluation.csv`` has the same content and every records file the same size;
    records files that are gone (a results folder given away without them) do not count.
    """
    try:
        known = (pq.read_metadata(path).metadata or {}).get(MADE_FROM)
    except (OSError, pa.ArrowInvalid):
        return False
    if known is None:
        return False
    then, now = json.loads(known), made_from(study, results)
    same = {name: size for name, size in then.pop("records").items() if name in now["records"]}
    return same == now.pop("records") and then == now


def made_from(study: Study, results: Path) -> dict[str, Any]:
    """What tells the results that are there now from others, for a file's metadata."""
    digest = hashlib.sha256()
    for *_, path in res.files_of_runs(study, results, _CSV):
        digest.update(path.relative_to(results).as_posix().encode())
        digest.update(path.read_bytes())
    sizes = {name: (results / name).stat().st_size for name in files(study, results)}
    return {"columns": [*FIRST, *SECOND], "csv": digest.hexdigest(), "records": sizes}


# -------------------------------------------------------------------------------------- making


def write_tidy(study: Study, results: Path, out: Path) -> list[Path]:
    """Write every record of a study's finished runs to ``out`` and to its second file.

    Args:
        results: ``results/<study>``.
        out: the folder for ``records.parquet`` and ``generations.parquet``; in the second a
            row group is a records file.
    """
    paths = [out / RECORDS, out / GENERATIONS]
    origin = {MADE_FROM: json.dumps(made_from(study, results)).encode()}
    first, second = (pa.schema(columns, metadata=origin) for columns in (FIRST, SECOND))
    records = [first.empty_table()]
    with (
        whole_file(paths[1]) as part,
        pq.ParquetWriter(part, second, compression="zstd") as generations,
    ):
        for short, long in _tables(study, results, long=True):
            records.append(short)
            assert long is not None
            if len(long):
                generations.write_table(long, row_group_size=len(long))
    with whole_file(paths[0]) as part:
        whole = pa.concat_tables(records).unify_dictionaries().replace_schema_metadata(origin)
        pq.write_table(whole, part, compression="zstd")
    return paths


def write_throughput(study: Study, results: Path, out: Path) -> None:
    """Write every run of a study's wall-clock grid to ``out``, a Parquet file."""
    schema = pa.schema({name: ARROW[field.dtype] for name, field in THROUGHPUT.items()})
    runs = pa.Table.from_pandas(load_throughput((study, results)), schema, preserve_index=False)
    with whole_file(out) as part:
        pq.write_table(runs.replace_schema_metadata(None), part, compression="zstd")


def _tables(study: Study, results: Path, long: bool) -> Iterator[tuple[pa.Table, pa.Table | None]]:
    """What the two files hold of each records file; the second only if it is asked for."""
    for row in _rows(study, results):
        found = once(iter_records(results / row["records"]))
        of_file = {name: row[name] for name in OF_FILE}
        yield table(found, of_file, FIRST), table(found, of_file, SECOND) if long else None


def once(records: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each answer once: of one written twice the last that has a score counts."""
    last: dict[tuple[str, str, int], dict[str, Any]] = {}
    for record in records:
        key = (str(record["task"]), str(record["doc_id"]), record.get("repeat", 0))
        if key not in last or record.get("score") is not None:
            last[key] = record
    return list(last.values())


def table(
    records: Sequence[dict[str, Any]], of_file: dict[str, Any], columns: dict[str, pa.DataType]
) -> pa.Table:
    """Records of one file as an Arrow table of some columns."""
    arrays = []
    for name, kind in columns.items():
        if name in of_file:
            arrays.append(constant(of_file[name], len(records), kind))
        elif name == "least_confidence":
            least = [min(r["confidence"]) if r.get("confidence") else None for r in records]
            arrays.append(pa.array(least, kind))
        elif name == "repeat":
            arrays.append(pa.array([r.get("repeat", 0) for r in records], kind))
        else:
            arrays.append(pa.array([r.get(name) for r in records], kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema(columns))


def constant(value: Any, length: int, kind: pa.DataType) -> pa.Array:
    """One value as a whole column."""
    if not pa.types.is_dictionary(kind):
        return pa.array(np.full(length, value), kind)
    if pd.isna(value):
        return pa.nulls(length, kind)
    codes = pa.array(np.zeros(length, np.int32))
    return pa.DictionaryArray.from_arrays(codes, [str(value)])
