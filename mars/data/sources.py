"""Where conversations come from: the toy world, a JSONL file, or the `datasets` library.

A source gives raw rows, each with its number, in chunks; what a row says is read later
(``forms.py``), in whichever process encodes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mars.config import Data
from mars.data.encoding import CHUNK

Chunk = list[tuple[int, Any]]
"""Numbered rows: mappings, or lines of JSON not yet read."""


class DataError(ValueError):
    """Training data that cannot be used; one line naming the file, the line and the remedy."""


@dataclass(frozen=True)
class Source:
    """Rows, and what to call them.

    Attributes:
        name: in messages: the file, folder or dataset.
        unit: what a row is called: line, row or conversation.
        identity: changes whenever the content does.
        chunks: the rows in order, read anew at each call.
        distinct: no row repeats another, by construction.
    """

    name: str
    unit: str
    identity: str
    chunks: Callable[[], Iterator[Chunk]]
    distinct: bool = False

    def where(self, row: int) -> str:
        """Where a row stands, for messages."""
        if self.unit == "line":
            return f"{self.name}, line {row}"
        return f"{self.name} {self.unit} {row}"


def embedded(start: int, count: int, seed: int) -> Source:
    """``count`` conversations of the toy world, from number ``start`` on."""
    from mars.embedded import corpus

    files = sorted(Path(corpus.__file__).parent.glob("*.py"))
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def chunks() -> Iterator[Chunk]:
        drawn = corpus.conversations("sft", count, seed, start=start)
        return _in_chunks(enumerate(drawn, start))

    identity = f"embedded {seed} {start} {count} {code}"
    return Source("embedded", "conversation", identity, chunks, distinct=True)


def open_source(data: Data) -> Source:
    """The rows of a file, a folder or a hub dataset. Nothing but a hub name uses the network.

    Raises:
        DataError: it is not there, cannot be read, or its form is none of the known.
    """
    path = data.path
    if path is None or path.is_dir() or path.suffix in (".parquet", ".arrow"):
        from mars.data.tables import open_dataset

        return open_dataset(data)
    if given := [name for name in ("config", "split", "revision") if getattr(data, name)]:
        raise DataError(f"data.{given[0]}: {path} is a file, which has none; leave it out")
    return _jsonl(path)


def file_hash(file: Path) -> str:
    """SHA-256 of what a file holds."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _jsonl(file: Path) -> Source:
    """Lines of a file from 1 on; blank ones do not count."""
    try:
        identity = file_hash(file)
    except FileNotFoundError:
        raise DataError(
            f"{file}: no such file; set data.source to a JSONL file, a folder or a hub dataset"
        ) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None

    def chunks() -> Iterator[Chunk]:
        with file.open("rb") as stream:
            lines = enumerate(stream, start=1)
            yield from _in_chunks((n, line) for n, line in lines if line.strip())

    return Source(str(file), "line", f"file {identity}", chunks)


def _in_chunks(rows: Iterator[tuple[int, Any]]) -> Iterator[Chunk]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
