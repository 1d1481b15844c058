"""Checkpoints: find, check, load, save and hash them, and find room for ``[MASK]``.

A checkpoint is a folder in the plain transformers layout (``config.json``, safetensors, tokenizer
with a chat template); ``mars.json`` beside the weights records how it was made. Every fault that
can be seen without loading the weights is one :class:`CheckpointError` line.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers import PreTrainedTokenizerBase as Tokenizer

log = logging.getLogger(__name__)

EMBEDDED = Path(__file__).parent / "embedded" / "checkpoints"
"""Where the project's own base checkpoints live."""

RECORD = "mars.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# <empty_output>: SmolLM2 names its markers of code repositories, and never trained this one.
_RESERVED = re.compile(r"reserved|unused|^<\|extra_\d+\|>$|^<empty_output>$", re.IGNORECASE)


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line: folder, file, remedy."""


# --------------------------------------------------------------------------- finding and checking


def resolve_checkpoint(ref: str | Path) -> Path:
    """The folder of ``embedded:<name>`` or of a path, checked as far as its files tell.

    Raises:
        CheckpointError: the folder or a file is missing, or a weight file is not whole.
    """
    name = str(ref).removeprefix("embedded:") if str(ref).startswith("embedded:") else None
    folder = EMBEDDED / name if name else Path(ref)
    remedy = f"make it with `mars pretrain {name}`" if name else "check the path, or make it again"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder; {remedy}")
    _read_json(folder / "config.json", remedy)
    for file in _weight_files(folder, remedy):
        _check_safetensors(file, remedy)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise CheckpointError(f"{folder}: tokenizer.json is missing; {remedy}")
    return folder


def _read_json(file: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent}: {file.name} is missing; {remedy}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object; {remedy}")
    return content


def _weight_files(folder: Path, remedy: str) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = set(_read_json(folder / _INDEX, remedy).get("weight_map", {}).values())
        files = [folder / str(shard) for shard in sorted(shards)]
    else:
        files = [folder / _WEIGHTS]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{folder}: {file.name} is missing; {remedy}")
    return files


def _check_safetensors(file: Path, remedy: str) -> None:
    """A safetensors file is 8 bytes of header length, the header, and exactly its tensors."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        header = stream.read(header_size) if 0 < header_size <= size - 8 else b""
    try:
        tensors = json.loads(header)
        ends = [entry["data_offsets"][1] for key, entry in tensors.items() if key[:2] != "__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file}: half-written, its header is broken; {remedy}") from None
    whole = 8 + header_size + max(ends, default=0)
    if size != whole:
        raise CheckpointError(f"{file}: half-written, {size} of {whole} bytes; {remedy}")


# --------------------------------------------------------------------------- loading


def load_model(
    ref: str | Path,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> PreTrainedModel:
    """The causal language model of a checkpoint: evaluation mode, SDPA attention."""
    folder = resolve_checkpoint(ref)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        line = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: transformers cannot load it: {line}") from None
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def load_tokenizer(ref: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint, with a chat template and no id beyond the embedding."""
    folder = resolve_checkpoint(ref)
    try:
        kind = _tokenizer_class(folder)
        tokenizer: Tokenizer = kind.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        line = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {line}") from None
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{folder}: tokenizer_config.json has no chat template; use an instruct checkpoint "
            "or add chat_template.jinja"
        )
    rows = _read_json(folder / "config.json", "make it again").get("vocab_size")
    used = highest_id(tokenizer) + 1
    if isinstance(rows, int) and used > rows:
        raise CheckpointError(
            f"{folder}: the tokenizer has {used} ids and the embedding {rows} rows; "
            "they belong to different checkpoints"
        )
    return tokenizer


def _tokenizer_class(folder: Path) -> Any:
    """Which class reads the tokenizer.

    For some architectures (qwen2 among them) AutoTokenizer of transformers 5 ignores that a
    folder names the generic class, and rebuilds ``tokenizer.json`` in its own way.
    """
    config = folder / "tokenizer_config.json"
    named = _read_json(config, "make it again").get("tokenizer_class") if config.exists() else None
    generic = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    whole = (folder / "tokenizer.json").is_file()
    return PreTrainedTokenizerFast if generic and whole else AutoTokenizer


def highest_id(tokenizer: Tokenizer) -> int:
    """The largest token id the tokenizer can produce."""
    return max(tokenizer.get_vocab().values())


def mask_token_id(model: PreTrainedModel, tokenizer: Tokenizer) -> int:
    """The id of ``[MASK]``: the recorded one, a spare row, a reserved token, or a new row.

    Recorded as ``model.config.mask_token_id``, so that a checkpoint keeps its own. Growing the
    table changes the model, so it is logged.
    """
    recorded = getattr(model.config, "mask_token_id", None)
    if recorded is not None:
        return int(recorded)
    spare = highest_id(tokenizer) + 1
    reserved = sorted(i for token, i in tokenizer.get_vocab().items() if _RESERVED.search(token))
    embedding: Any = model.get_input_embeddings()
    if spare < embedding.weight.shape[0]:
        chosen = spare
    elif reserved:
        chosen = reserved[0]
    else:
        log.warning(
            "no spare embedding row for [MASK]: the table grows by one row to %d", spare + 1
        )
        model.resize_token_embeddings(spare + 1)
        chosen = spare
    model.config.mask_token_id = chosen
    return chosen


# --------------------------------------------------------------------------- saving


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one clear line."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        text = " ".join(str(error).split())
        if number == errno.ENOSPC or "No space left" in text or "os error 28" in text:
            raise CheckpointError(
                f"{folder}: the disk is full; free some space and start again, work goes on "
                "from the newest whole checkpoint"
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise CheckpointError(f"{folder}: cannot be written: {text}") from error
        raise


def save_checkpoint(
    model: PreTrainedModel, tokenizer: Tokenizer, folder: Path, recipe: dict[str, Any]
) -> None:
    """Write a checkpoint that plain ``AutoModelForCausalLM`` loads; whole, or not there at all.

    It is written under a temporary name beside ``folder`` and renamed; an older folder stays
    until the new one is whole. ``mars.json`` holds the recipe, the mask token and the hash.
    """
    folder = Path(folder)
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    with writing(folder):
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir(parents=True)
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        record = {
            "recipe": recipe,
            "mask_token_id": getattr(model.config, "mask_token_id", None),
            "hash": checkpoint_hash(new),
        }
        (new / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)


def import_gguf(file: Path, folder: Path, source: dict[str, Any]) -> None:
    """Make a plain checkpoint of the model and the tokenizer in a GGUF file.

    It is saved in float32: what quantised blocks stand for does not fit bfloat16. Its recipe is
    ``source`` and what the file says of itself.
    """
    file = Path(file)
    if find_spec("gguf") is None:
        raise CheckpointError(
            f"{file}: the package gguf, which reads it, is not installed; install the version that "
            "the extra `smollm2` in pyproject.toml names"
        )
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file; check the path")
    model, tokenizer, quantization = _read_gguf(file)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    facts = {"gguf": file.name, "gguf_sha256": digest, "quantization": quantization}
    save_checkpoint(model, tokenizer, folder, {**source, **facts})


def _read_gguf(file: Path) -> tuple[PreTrainedModel, Tokenizer, dict[str, int]]:
    """Model, tokenizer, and how many tensors are stored in which way."""
    from gguf import GGUFReader
    from transformers import GgufConfig

    place = {"gguf_file": file.name, "local_files_only": True}
    try:
        reader = GGUFReader(file)
        # A model that transformers counts as quantised cannot be saved.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **place,
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, **place)
    except (OSError, ValueError, LookupError, RuntimeError, struct.error) as error:
        line = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{file}: not a whole GGUF file of a known model: {line}") from None
    model, info = loaded
    if info["missing_keys"]:  # transformers would leave these at random values
        missing = ", ".join(sorted(info["missing_keys"]))[:300]
        raise CheckpointError(f"{file}: not a whole GGUF file: it lacks {missing}")
    splitting = reader.get_field("tokenizer.ggml.pre")
    if splitting is not None and splitting.contents() == "smollm":
        # Each digit on its own, before spaces are grouped: transformers does not know this name.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.model_max_length = model.config.max_position_embeddings
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return model, tokenizer, dict(kinds.most_common())


def checkpoint_record(folder: Path) -> dict[str, Any]:
    """``mars.json`` of a checkpoint; empty where there is none (a checkpoint from elsewhere)."""
    file = Path(folder) / RECORD
    return _read_json(file, "remove the file") if file.is_file() else {}


def checkpoint_hash(folder: str | Path) -> str:
    """SHA-256 over what a checkpoint computes with: weights, configuration, tokenizer."""
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
    return digest.hexdigest()
