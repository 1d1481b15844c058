"""The checkpoint to try: a reference, or a model that is loaded already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mars.decoding.contract import DecodingError
from mars.models import (
    checkpoint_hash,
    checkpoint_record,
    load_model,
    load_tokenizer,
    resolve_checkpoint,
)


class Opened(NamedTuple):
    """A loaded model, its tokenizer and its checkpoint's hash, where a file has it."""

    model: Any
    tokenizer: Any
    hash: str | None


@dataclass(frozen=True)
class Located:
    """Where a model comes from. Its weights are loaded once everything else was checked.

    Attributes:
        model, tokenizer: where they are loaded already, else None.
        folder: the checkpoint's, where there is one.
        dtype, device: as asked for.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    dtype: str | None
    device: str | None

    @property
    def recipe(self) -> dict[str, Any]:
        """How the checkpoint was made; empty where nothing says so."""
        return dict(checkpoint_record(self.folder).get("recipe", {})) if self.folder else {}

    def open(self) -> Opened:
        """Load what is not loaded yet."""
        if self.model is not None:
            return Opened(self.model.eval(), self.tokenizer, None)
        assert self.folder is not None
        device = _device(self.device)
        dtype = self.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise DecodingError(f"dtype {dtype!r} is unknown: set float32, bfloat16 or float16")
        tokenizer = load_tokenizer(self.folder)
        model = load_model(self.folder, dtype, device)
        return Opened(model, tokenizer, checkpoint_hash(self.folder))


def locate(model: Any, tokenizer: Any, dtype: str | None, device: str | None) -> Located:
    """Find a checkpoint by its reference, or where a loaded model came from."""
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise DecodingError("tokenizer: a checkpoint brings its own; leave it out")
        return Located(None, None, resolve_checkpoint(model), dtype, device)
    if tokenizer is None:
        raise DecodingError("a loaded model needs its tokenizer: add tokenizer=…")
    if not getattr(tokenizer, "chat_template", None):
        raise DecodingError("the tokenizer has no chat template: set tokenizer.chat_template")
    if dtype is not None or device is not None:
        raise DecodingError("dtype and device are those of the loaded model: leave them out")
    folder = Path(str(getattr(model, "name_or_path", "")))
    return Located(model, tokenizer, folder if folder.is_dir() else None, dtype, device)


def _device(wished: str | None) -> str:
    if wished is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wished.startswith("cuda") and not torch.cuda.is_available():
        raise DecodingError(f"device {wished!r}: torch sees no GPU here; leave it out for the CPU")
    return wished
