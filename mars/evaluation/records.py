"""Records: one JSON line per document, kept as soon as it is decoded.

A record is found again by its *fingerprint*, a hash of everything that shapes it, so a killed run
goes on where it stopped, and a change of any setting is a new record, never a reused one. What such
a change leaves behind is kept in a file beside, and found again where the setting comes back.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
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
_BEGINS = b'{"fingerprint": "'


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


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A table as text, a line a row after that of the columns."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_records(path: Path) -> list[Record]:
    """The whole records of a file; lines that a killed run left torn are passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    return [record for line in lines if (record := _parse(line)) is not None]


def _parse(line: bytes) -> Record | None:
    """The record of a line; None: it is torn, or of another kind."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(values, dict) and values.keys() | _OPTIONAL == _NAMES
    return Record(**values) if whole else None


def _append(path: Path, records: Iterable[Record]) -> None:
    """Append records to a file; they are on disk when this returns. Raises OSError: none is."""
    size = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            size = file.tell()
            file.write("".join(record.line() for record in records).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if size is not None:
            with suppress(OSError):
                os.truncate(path, size)
        raise


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed run left after the last whole line, so that lines can follow."""
    try:
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RecordError(f"{path}: cannot be opened: {error.strerror or error}") from None


class _Earlier:
    """Records of settings that are not in use now: only their places are held in memory.

    What is used again is copied from here, so that nothing is ever removed.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _places(self) -> dict[str, int]:
        """Fingerprint → where its line begins; what a killed run left torn at the end is cut."""
        places: dict[str, int] = {}
        if not self.path.exists():
            return places
        at = 0
        with self.path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if line.startswith(_BEGINS):
                    places[line[len(_BEGINS) :].partition(b'"')[0].decode("ascii", "replace")] = at
                at += len(line)
            file.truncate(at)
        return places

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def get(self, key: str) -> Record | None:
        """The record of a fingerprint, read anew each time."""
        if key not in self:
            return None
        with self.path.open("rb") as file:
            file.seek(self._places[key])
            return _parse(file.readline())

    def add(self, records: Iterable[Record]) -> None:
        """Keep those that are not here yet. Raises OSError: none of them is kept."""
        if new := [record for record in records if record.fingerprint not in self]:
            _append(self.path, new)
            del self._places


class RecordStore:
    """The records of one benchmark under one decoding setting, in memory and in a file.

    In ``<name>.earlier.jsonl`` beside it are those of other budgets, templates, limits and so on,
    which count for no result but are found.

    Args:
        path: the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, Record] = {}
        self._earlier: _Earlier | None = None
        if path is not None:
            _drop_torn_line(path)
            self._known = {record.fingerprint: record for record in read_records(path)}
            self._earlier = _Earlier(path.with_name(f"{path.stem}.earlier.jsonl"))

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Record]:
        """The records of the file, in its order."""
        return iter(self._known.values())

    def __contains__(self, key: object) -> bool:
        return key in self._known or (self._earlier is not None and key in self._earlier)

    def get(self, key: str) -> Record | None:
        """The record of a fingerprint, if it is known."""
        if key in self._known or self._earlier is None:
            return self._known.get(key)
        return self._earlier.get(key)

    def add(self, records: Iterable[Record]) -> None:
        """Append finished records; they are on disk when this returns.

        Raises:
            RecordError: they cannot be written; those added before stay valid.
        """
        records = list(records)
        if self.path is not None:
            with self._one_line():
                _append(self.path, records)
        self._known.update({record.fingerprint: record for record in records})

    def replace(self, records: Iterable[Record]) -> None:
        """Make these, in this order, the whole content of the file; others go to the earlier ones.

        Raises:
            RecordError: they cannot be written; nothing is lost.
        """
        kept = {record.fingerprint: record for record in records}
        if self.path is not None and self._earlier is not None:
            with self._one_line():
                self._earlier.add(record for key, record in self._known.items() if key not in kept)
            write_atomically(self.path, "".join(record.line() for record in kept.values()))
        self._known = kept

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"{self.path}: cannot be written: {error.strerror or error}; the {len(self)} "
                "records in it are kept: free space and run again"
            ) from None
