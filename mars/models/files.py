"""Checkpoint folders: found, checked as far as their files tell, hashed.

A checkpoint is a folder in the plain transformers layout (``config.json``, safetensors, tokenizer
with a chat template); ``mars.json`` beside the weights records how it was made. Every fault that
can be seen without loading the weights is one :class:`CheckpointError` line.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

EMBEDDED = Path(__file__).parents[1] / "embedded" / "checkpoints"
"""Where the project's own base checkpoints live."""

RECORD = "mars.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_MADE_BY = {"smollm2-135m-instruct": "make it with `make smollm2`"}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line: folder, file, remedy."""


def check_folder(folder: Path, remedy: str | None = None) -> Path:
    """The folder, whose files are all there and whole.

    Args:
        folder: of the checkpoint.
        remedy: what to do where it is not; None: a general one.

    Raises:
        CheckpointError: the folder or a file is missing, or a weight file is not whole.
    """
    remedy = remedy or _MADE_BY.get(folder.name, "check the path, or make it again")
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder; {remedy}")
    rows = read_json(folder / "config.json", remedy).get("vocab_size")
    if not isinstance(rows, int | None):
        raise CheckpointError(
            f"{folder / 'config.json'}: vocab_size is {rows!r} and no number; {remedy}"
        )
    for file in weight_files(folder, remedy):
        tensors_of(file, remedy)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise CheckpointError(f"{folder}: tokenizer.json is missing; {remedy}")
    return folder


def read_json(file: Path, remedy: str) -> dict[str, Any]:
    """A JSON object of a checkpoint, or a CheckpointError that ends with the remedy."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent}: {file.name} is missing; {remedy}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object; {remedy}")
    return content


def weight_files(folder: Path, remedy: str = "make it again") -> list[Path]:
    """The safetensors files of a checkpoint, in order."""
    if (folder / _INDEX).is_file():
        shards = read_json(folder / _INDEX, remedy).get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError(f"{folder / _INDEX}: weight_map is no mapping; {remedy}")
        files = [folder / shard for shard in sorted(set(map(str, shards.values())))]
    else:
        files = [folder / _WEIGHTS]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{folder}: {file.name} is missing; {remedy}")
    return files


def tensors_of(file: Path, remedy: str = "make it again") -> dict[str, dict[str, Any]]:
    """Name → dtype, shape and data_offsets of every tensor, from a safetensors file's header.

    Such a file is 8 bytes of header length, the header, and exactly its tensors.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        header = stream.read(header_size) if 0 < header_size <= size - 8 else b""
    try:
        found = {name: made for name, made in json.loads(header).items() if name[:2] != "__"}
        ends = [made["data_offsets"][1] for made in found.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file}: half-written, its header is broken; {remedy}") from None
    whole = 8 + header_size + max(ends, default=0)
    if size != whole:
        raise CheckpointError(f"{file}: half-written, {size} of {whole} bytes; {remedy}")
    return found


def checkpoint_record(folder: Path) -> dict[str, Any]:
    """``mars.json`` of a checkpoint; empty where there is none (a checkpoint from elsewhere)."""
    file = Path(folder) / RECORD
    return read_json(file, "remove the file") if file.is_file() else {}


def checkpoint_hash(folder: str | Path) -> str:
    """SHA-256 over what a checkpoint computes with: weights, configuration, tokenizer.

    Of ``generation_config.json`` only what ends a turn counts, and only where ``config.json`` says
    otherwise: the rest does not shape what is decoded here.
    """
    folder = Path(folder)
    names = {_INDEX, "config.json", "chat_template.jinja", "special_tokens_map.json"}
    names |= {"added_tokens.json", "tokenizer_config.json", "merges.txt", *_TOKENIZER_FILES}
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.name in names or file.suffix == ".safetensors":
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
    ends = _ends(folder / "generation_config.json")
    if ends not in (None, _ends(folder / "config.json")):
        digest.update(f"eos_token_id\0{ends}".encode())
    return digest.hexdigest()


def _ends(file: Path) -> list[Any] | None:
    """The end-of-turn ids that a configuration names; None: there is no such file."""
    if not file.is_file():
        return None
    named = read_json(file, "make the checkpoint again").get("eos_token_id")
    return sorted({named} if isinstance(named, int) else set(named or ()))
