"""Saving a checkpoint whole or not at all, so that plain ``AutoModelForCausalLM`` loads it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.models.files import RECORD, CheckpointError, checkpoint_hash


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
    until the new one is whole. ``mars.json`` holds the recipe, the mask token and where that was
    found, and the hash.
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
            "mask_token_source": getattr(model.config, "mask_token_source", None),
            "hash": checkpoint_hash(new),
        }
        (new / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)
