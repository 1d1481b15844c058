"""What is below ``data_root``: each file's hash, size and source, and whether it still is so."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "manifest.json"


class FetchError(RuntimeError):
    """Something that was not fetched, or is not what it was; one line for the user."""


@dataclass(frozen=True)
class Entry:
    """One fetched file.

    Attributes:
        sha256: of its content.
        size: bytes.
        source: address of what it is a part of.
        revision: the commit it is of; "" where there is none.
    """

    sha256: str
    size: int
    source: str
    revision: str


class Manifest:
    """``manifest.json`` of one folder, written anew with every file that is added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / NAME
        self.files: dict[str, Entry] = {}
        try:
            raw = json.loads(self.path.read_text(encoding="utf-8"))
            self.files = {name: Entry(**made) for name, made in raw["files"].items()}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FetchError(
                f"{self.path}: cannot be read; remove it, and files are verified anew"
            ) from None

    def has(self, name: str, revision: str | None = None) -> bool:
        """Whether a file is there, as large as it was, and of that revision."""
        made, path = self.files.get(name), self.root / name
        if made is None or not path.is_file() or path.stat().st_size != made.size:
            return False
        return revision is None or made.revision == revision

    def add(self, name: str, sha256: str, source: str, revision: str = "") -> None:
        """Note a file that was verified."""
        size = (self.root / name).stat().st_size
        self.files[name] = Entry(sha256, size, source, revision)
        made = {"files": {key: asdict(self.files[key]) for key in sorted(self.files)}}
        temporary = self.path.with_name(f".{NAME}.{os.getpid()}")
        temporary.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)

    def verify(self) -> str:
        """Hash every file again, and say that all are as they were.

        Raises:
            FetchError: one line with those that are missing, or are not what they were.
        """
        if not self.files:
            raise FetchError(f"{self.path}: nothing was fetched yet; leave out --verify")
        wrong = []
        for name, made in self.files.items():
            path = self.root / name
            if not path.is_file():
                wrong.append(f"{path} is missing")
            elif sha256(path) != made.sha256:
                wrong.append(f"{path} is not what was fetched from {made.source}")
        if wrong:
            raise FetchError(f"{'; '.join(wrong)}: remove what is wrong and fetch again")
        size = sum(made.size for made in self.files.values())
        return f"{self.root}: {len(self.files)} files, {size / 1e6:,.1f} MB, all as fetched"


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob(path: Path) -> str:
    """What git calls the content of a file, as the hub does of files that are not in LFS."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
