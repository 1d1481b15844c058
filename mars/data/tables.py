"""Sources read by the `datasets` library: a hub dataset, a saved folder, Parquet files.

Its own cache is used and its offline switches (``HF_HUB_OFFLINE``) are obeyed. Whatever fails is
one line with the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets

from mars.config import Data
from mars.data.encoding import CHUNK
from mars.data.forms import columns_of, unknown_form
from mars.data.sources import Chunk, DataError, Source, file_hash

OFFLINE = (
    "the Hugging Face Hub cannot be reached (no network, or HF_HUB_OFFLINE is set) and the dataset "
    "is not in the local cache; load it once with a network, or name a local file or folder"
)


def open_dataset(data: Data) -> Source:
    """One split of a dataset as a source of rows. Raises DataError."""
    name = data.hub_name or str(data.path)
    try:
        found = _load(data, name)
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{name}: {_explain(error, name, data)}") from None
    columns = columns_of(found.column_names)
    if columns is None:
        raise DataError(f"{name}: {unknown_form(found.column_names)}")
    rows = found.select_columns(list(columns))

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(rows), CHUNK):
            held: dict[str, list[Any]] = rows[start : start + CHUNK]
            values = zip(*held.values(), strict=True)
            yield [(start + i, dict(zip(held, row, strict=True))) for i, row in enumerate(values)]

    return Source(name, "row", _identity(rows), chunks)


def _identity(rows: datasets.Dataset) -> str:
    """Of what the rows hold.

    The library's own fingerprint will not do: it changes with a file's path and time, and with
    every commit of a hub dataset.
    """
    tables = [Path(table["filename"]) for table in rows.cache_files]
    held = [_hash(table, table.stat().st_mtime_ns) for table in tables] or [rows._fingerprint]
    return " ".join(["dataset", *rows.column_names, str(len(rows)), *held])


@cache
def _hash(file: Path, _changed: int) -> str:
    return file_hash(file)  # once a process: a dataset is opened to be known, and to be read


def _load(data: Data, name: str) -> datasets.Dataset:
    path, split = data.path, data.split or "train"
    if path is None:
        return datasets.load_dataset(name, data.config, split=split, revision=data.revision)
    if data.revision:
        raise DataError(f"data.revision: {name} is no hub dataset; leave it out")
    if path.is_dir() and _is_saved(path):
        return _saved(data, path, split)
    if not path.is_dir():
        if data.config or data.split:
            raise DataError(f"data.{'config' if data.config else 'split'}: {name} is one file, "
                            "which has none; leave it out")  # fmt: skip
        kind = path.suffix.removeprefix(".")
        return datasets.load_dataset(kind, data_files=str(path), split="train")
    return datasets.load_dataset(str(path), data.config, split=split)


_SPLITS, _STATE = "dataset_dict.json", "state.json"


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_SPLITS, _STATE))


def _saved(data: Data, folder: Path, split: str) -> datasets.Dataset:
    """What ``save_to_disk`` wrote: one dataset, or one a split (others than ours stay closed)."""
    if data.config:
        raise DataError(f"data.config: {folder} was saved without; leave it out")
    if (folder / _SPLITS).is_file():
        splits = json.loads((folder / _SPLITS).read_text(encoding="utf-8"))["splits"]
        if split not in splits:
            raise ValueError(f'Unknown split "{split}". Should be one of {splits}.')
        folder = folder / split
    elif data.split:
        raise DataError(f"data.split: {folder} holds one dataset without splits; leave it out")
    try:
        return datasets.load_from_disk(str(folder))
    except IndexError:  # what the library makes of a dataset without rows
        raise DataError(f"{folder}: the dataset has no rows") from None


def _explain(error: Exception, name: str, data: Data) -> str:
    """What is wrong with a dataset, and the remedy; the words of the library where they help."""
    line = " ".join(str(error).split())
    if isinstance(error, ConnectionError):
        return OFFLINE
    if isinstance(error, datasets.exceptions.DatasetNotFoundError):
        if "gated" in line:
            return (
                f"a gated dataset: accept its terms on https://huggingface.co/datasets/{name}, "
                "then log in with `hf auth login` or set HF_TOKEN"
            )
        if "Revision" in line:
            return f"it has no revision {data.revision!r}; correct data.revision"
        return (
            "no such dataset on the Hugging Face Hub, or a private one; check owner and name in "
            "data.source, or log in with `hf auth login`"
        )
    if line.startswith("Unknown split"):
        return f"{line.replace('Unknown', 'unknown')}; set data.split"
    if "BuilderConfig" in line or "Config name is missing" in line:
        return f"{line}; set data.config"
    if "scripts are no longer supported" in line:
        return "it is made by a script, which the datasets library no longer runs; convert it"
    return f"cannot be read: {line}"
