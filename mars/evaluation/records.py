"""Records: one JSON line per document, kept as soon as it is decoded.

A record is found again by its *fingerprint*, a hash of everything that shapes it, so a killed run
goes on where it stopped, and a change of any setting is a new record, never a reused one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

FORMAT = 1
"""Part of every fingerprint: raise it when the meaning of a record changes."""


class RecordError(RuntimeError):
    """Records that cannot be read or written; the message is one line for the user."""


@dataclass
class Record:
    """What came of one document.

    Attributes:
        fingerprint: hash of everything that shaped it.
        benchmark, task, doc_id, repeat: which document, of which lm-eval task of the benchmark.
        prompt_hash: hash of the prompt's text.
        output: the text that is scored.
        tokens, forwards: kept tokens, and the forwards this row took part in.
        accepted: tokens accepted at each of those forwards.
        finish: end_of_turn, stop, budget or context.
        truncated: cut by the budget or the context.
        score: the benchmark's primary metric in 0 … 1; None until scored.
        seconds: the row's share of its batch's wall-clock time.
        confidence: of each kept token.
        answers: where the output may not be kept (it is empty then): what the grader read in it,
            filter → answer. Scoring anew reads these.
        output_hash: likewise: hash of the output.
    """

    fingerprint: str
    benchmark: str
    task: str
    doc_id: int
    repeat: int
    prompt_hash: str
    output: str
    tokens: int
    forwards: int
    accepted: list[int]
    finish: str
    truncated: bool
    score: float | None
    seconds: float
    confidence: list[float]
    answers: dict[str, str] | None = None
    output_hash: str | None = None

    def line(self) -> str:
        """The record as a line of its file."""
        values = vars(self).items()
        held = {name: value for name, value in values if name not in _OPTIONAL or value is not None}
        return json.dumps(held, ensure_ascii=False) + "\n"

    @property
    def said(self) -> str:
        """What the benchmark's grader is given."""
        return self.output if self.answers is None else json.dumps(self.answers)


_OPTIONAL = {field.name for field in fields(Record) if field.default is not MISSING}
_NAMES = {field.name for field in fields(Record)}


def digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Hash of everything that shapes a record; ``parts`` must be plain JSON values."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def decoding_code(decoder: str) -> str:
    """Hash of the sources that shape a generation: what other code decoded is not used again.

    The registry and the other methods' files do not count, so that a new method repeats nothing; a
    plug-in's own file does.
    """
    from mars.decoding import DECODERS

    return _code_of(DECODERS[decoder])


@cache
def _code_of(method: type) -> str:
    from mars.decoding import DECODERS

    mars = Path(__file__).parents[1]
    kin = {parent.__module__: parent for parent in method.__mro__}
    others = {
        m.rsplit(".", 1)[-1]
        for made in DECODERS.values()
        if (m := made.__module__) not in kin and m.startswith("mars.decoding.")
    }
    shared = [f for f in sorted((mars / "decoding").glob("*.py")) if f.stem not in others]
    loading = [mars / "models" / f"{name}.py" for name in ("loading", "mask_token", "plain")]
    files = [*loading, *(f for f in shared if f.stem != "__init__")]
    mine = [parent for name, parent in kin.items() if name not in ("abc", "builtins")]
    files += [Path(inspect.getfile(p)) for p in mine if not p.__module__.startswith("mars.")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def write_atomically(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it; readers see all of it or none.

    Raises:
        RecordError: the file cannot be written; what was there before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RecordError(
            f"{path}: cannot be written: {error.strerror or error}; free space or choose another "
            "folder and run again, finished records are kept"
        ) from None


def read_records(path: Path) -> list[Record]:
    """The whole records of a file; lines that a killed run left torn are passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and values.keys() | _OPTIONAL == _NAMES:
            found.append(Record(**values))
    return found


class RecordStore:
    """The records of one benchmark under one decoding setting, in memory and in a file.

    Args:
        path: the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, Record] = {}
        if path is not None:
            self._drop_torn_line(path)
            self._known = {record.fingerprint: record for record in read_records(path)}

    @staticmethod
    def _drop_torn_line(path: Path) -> None:
        """Cut off what a killed run left after the last whole line, so that lines can follow."""
        if not path.exists():
            return
        try:
            with path.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        except OSError as error:
            raise RecordError(f"{path}: cannot be opened: {error.strerror or error}") from None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Record | None:
        """The record of a fingerprint, if it is known."""
        return self._known.get(key)

    def add(self, records: Iterable[Record]) -> None:
        """Append finished records; they are on disk when this returns.

        Raises:
            RecordError: they cannot be written; those added before stay valid.
        """
        records = list(records)
        if self.path is not None:
            self._append("".join(record.line() for record in records).encode())
        self._known.update({record.fingerprint: record for record in records})

    def _append(self, lines: bytes) -> None:
        assert self.path is not None
        size = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                size = file.tell()
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if size is not None:
                with suppress(OSError):
                    os.truncate(self.path, size)
            raise RecordError(
                f"{self.path}: cannot be written: {error.strerror or error}; the {len(self)} "
                "records in it are kept: free space and run again"
            ) from None

    def replace(self, records: Iterable[Record]) -> None:
        """Make these, in this order, the whole content of the store."""
        records = list(records)
        if self.path is not None:
            write_atomically(self.path, "".join(record.line() for record in records))
        self._known = {record.fingerprint: record for record in records}
