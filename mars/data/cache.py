"""Encoded conversations kept between runs, found by a hash of everything that shapes them.

A folder an entry, below the cache of the `datasets` library (``HF_DATASETS_CACHE``, ``HF_HOME``):
one file an array, and ``table.json``, which holds the hash of each and so tells a torn entry.
What is made in less time than is worth a file is not kept.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.data.examples import ARRAYS, Report, Table
from mars.data.sources import file_hash

log = logging.getLogger(__name__)

WORTH_SECONDS = 1.0
"""What took less to make is made again. A stage of the embedded study takes 2.7 s to make, 20 ms to
read and 6 MB; a test's few rows are not worth a file."""

_CODE = ("encoding.py", "examples.py", "forms.py", "prepare.py")
_LIBRARIES = ("tokenizers", "transformers", "jinja2")


def cached(parts: Mapping[str, Any], make: Callable[[], Table]) -> Table:
    """The table of a key, from the cache where it is whole, else made and perhaps kept."""
    text = json.dumps({**parts, **_made_by()}, sort_keys=True)
    entry = folder() / hashlib.sha256(text.encode()).hexdigest()[:32]
    if entry.is_dir():
        try:
            return _read(entry)
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s: not whole (%s); made again", entry, " ".join(str(error).split()))
    start = time.perf_counter()
    table = make()
    if time.perf_counter() - start >= WORTH_SECONDS:
        try:
            _write(entry, table)
        except OSError as error:  # a full or read-only disk costs time, not the run
            log.warning("%s: cannot be written (%s); nothing was kept", entry, error.strerror)
    return table


def folder() -> Path:
    """Where entries lie."""
    from huggingface_hub.constants import HF_HOME

    root = os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME, "datasets")
    return Path(root, "mars")


def tokenizer_identity(tokenizer: Tokenizer) -> str:
    """Hash of all that a tokenizer does to a conversation, its chat template included."""
    backend: Any = tokenizer
    core = json.loads(backend.backend_tokenizer.to_str())
    for state in ("truncation", "padding"):  # left behind by whoever called it last
        core.pop(state, None)
    parts = [core, tokenizer.chat_template, tokenizer.special_tokens_map]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _made_by() -> dict[str, Any]:
    here = Path(__file__).parent
    code = hashlib.sha256(b"".join((here / name).read_bytes() for name in _CODE)).hexdigest()
    return {"code": code, "libraries": {name: version(name) for name in _LIBRARIES}}


def _read(entry: Path) -> Table:
    """The table of an entry, its arrays mapped. Raises OSError, ValueError or KeyError."""
    told = json.loads((entry / "table.json").read_text(encoding="utf-8"))
    arrays = {}
    for name in ARRAYS:
        file = entry / f"{name}.npy"
        if file_hash(file) != told["sha256"][name]:
            raise ValueError(f"{file.name} is not what was written")
        # Copy on write: torch wants arrays that may be written to, and nobody does.
        arrays[name] = np.load(file, mmap_mode="c")
    return Table(**arrays, report=Report.of_json(told["report"]))


def _write(entry: Path, table: Table) -> None:
    """Write an entry under a temporary name, then rename it; whoever is first stays."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        told: dict[str, Any] = {"report": table.report.as_json(), "sha256": {}}
        for name in ARRAYS:
            np.save(new / f"{name}.npy", getattr(table, name))
            told["sha256"][name] = file_hash(new / f"{name}.npy")
        (new / "table.json").write_text(json.dumps(told), encoding="utf-8")
        if entry.exists():  # torn: a whole one would have been read
            os.rename(entry, new / "torn")
        try:
            os.rename(new, entry)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        shutil.rmtree(entry / "torn", ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
