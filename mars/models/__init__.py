"""Checkpoints: find, check, load, save and hash them, and find room for ``[MASK]``."""

from __future__ import annotations

from mars.models.devices import choose_dtype, visible_gpus
from mars.models.files import (
    EMBEDDED,
    RECORD,
    CheckpointError,
    checkpoint_hash,
    checkpoint_record,
)
from mars.models.gguf import import_gguf
from mars.models.hub import resolve_checkpoint
from mars.models.loading import load_model, load_tokenizer
from mars.models.mask_token import highest_id, mask_token_id, told_mask_token
from mars.models.saving import save_checkpoint, writing

__all__ = [
    "EMBEDDED",
    "RECORD",
    "CheckpointError",
    "checkpoint_hash",
    "checkpoint_record",
    "choose_dtype",
    "highest_id",
    "import_gguf",
    "load_model",
    "load_tokenizer",
    "mask_token_id",
    "resolve_checkpoint",
    "save_checkpoint",
    "told_mask_token",
    "visible_gpus",
    "writing",
]
