"""Loading a checkpoint: its model and its tokenizer, without any code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.models.devices import choose_dtype, spreads, weight_bytes
from mars.models.files import CheckpointError, read_json
from mars.models.hub import resolve_checkpoint
from mars.models.mask_token import highest_id
from mars.models.plain import plain_config

_MAKE_AGAIN = "make it again"
_BROKEN = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError, StrictDataclassError,
)  # fmt: skip
"""What transformers raises of a checkpoint that it cannot read."""


def load_model(
    ref: str | Path,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> PreTrainedModel:
    """The causal language model of a checkpoint: evaluation mode, SDPA attention.

    Args:
        ref: see ``resolve_checkpoint``.
        dtype: of the weights; "auto": see ``choose_dtype``.
        device: where it goes; on "cuda" a model larger than the GPU is spread over those there are.

    Raises:
        CheckpointError: one line: the folder and what is wrong with it.
    """
    folder = resolve_checkpoint(ref)
    dtype = _dtype(choose_dtype(dtype, str(device)) if isinstance(dtype, str) else dtype)
    config = plain_config(folder)
    options: dict[str, Any] = {} if config is None else {"config": config}
    if spread := spreads(folder, dtype, str(device)):
        options["device_map"] = "auto"
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
            **options,
        )
        loaded: PreTrainedModel = model if spread else model.to(device)
    except torch.OutOfMemoryError as error:
        raise CheckpointError(_too_large(folder, dtype, error)) from None
    except _BROKEN as error:
        line = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: transformers cannot load it: {line}") from None
    _check_whole(folder, info)
    return loaded.eval()


def _too_large(folder: Path, dtype: torch.dtype, error: Exception) -> str:
    """What to say of weights that found no room on the GPUs."""
    gpus = max(1, torch.cuda.device_count())
    remedies = [f"set evaluation.gpus_per_process to {2 * gpus}", "end what else uses the GPU"]
    if dtype.itemsize > 2:
        remedies.insert(0, "set training.dtype to bfloat16")
    name = str(dtype).removeprefix("torch.")
    return (
        f"{folder}: out of GPU memory: its weights take {weight_bytes(folder, dtype) / 1e9:.3g} GB "
        f"in {name}, on {gpus} GPU{'s' if gpus > 1 else ''}: {', or '.join(remedies)} "
        f"({' '.join(str(error).split())[:160]})"
    )


def _check_whole(folder: Path, info: dict[str, Any]) -> None:
    """Refuse weights that transformers would leave at random values."""
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"{folder}: its weights lack {', '.join(missing)[:200]}: they are of another "
            f"architecture than config.json says, or not whole; {_MAKE_AGAIN}"
        )
    for name, found, told in sorted(info["mismatched_keys"]):
        raise CheckpointError(
            f"{folder}: {name} is of shape {tuple(found)} and config.json says {tuple(told)}: "
            f"they belong to different checkpoints; {_MAKE_AGAIN}"
        )


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def load_tokenizer(ref: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint, with a chat template and no id beyond the embedding."""
    folder = resolve_checkpoint(ref)
    kind, config = _tokenizer_class(folder), plain_config(folder)
    options: dict[str, Any] = {}
    if config is not None and kind is AutoTokenizer:  # else it would ask to run other code
        options = {"config": config, "trust_remote_code": False}
    try:
        tokenizer: Tokenizer = kind.from_pretrained(folder, local_files_only=True, **options)
    except _BROKEN as error:
        line = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {line}") from None
    tokenizer.init_kwargs.pop("auto_map", None)
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{folder}: tokenizer_config.json has no chat template; use an instruct checkpoint "
            "or add chat_template.jinja"
        )
    rows = read_json(folder / "config.json", _MAKE_AGAIN).get("vocab_size")
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
    named = read_json(config, _MAKE_AGAIN).get("tokenizer_class") if config.exists() else None
    generic = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    whole = (folder / "tokenizer.json").is_file()
    return PreTrainedTokenizerFast if generic and whole else AutoTokenizer
