"""GGUF files made into plain checkpoints."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.models.files import CheckpointError
from mars.models.saving import save_checkpoint


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
