"""The checkpoint to try: a reference, or a model that is loaded already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from mars.decoding.contract import DecodingError
from mars.decoding.linears import choose_linears
from mars.models import (
    checkpoint_record,
    load_model,
    load_tokenizer,
    mask_token_id,
    resolve_checkpoint,
)

Linears = Literal["stock", "packed", "auto"]


class Opened(NamedTuple):
    """What is ready to decode.

    Attributes:
        model, tokenizer: loaded.
        folder: where the weights are from; None: they may be others by now.
        linears: stock or packed.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    linears: str


@dataclass(frozen=True)
class Located:
    """Where a model comes from. Its weights are loaded once everything else was checked.

    Attributes:
        model, tokenizer: where they are loaded already, else None.
        folder: the checkpoint's, where there is one.
        dtype, device, linears: as asked for.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    dtype: str | None
    device: str | None
    linears: Linears | None

    @property
    def recipe(self) -> dict[str, Any]:
        """How the checkpoint was made; empty where nothing says so."""
        return dict(checkpoint_record(self.folder).get("recipe", {})) if self.folder else {}

    def open(self) -> Opened:
        """Load what is not loaded yet."""
        if self.model is not None:
            return Opened(self.model.eval(), self.tokenizer, None, "stock")
        assert self.folder is not None
        device = _device(self.device)
        dtype = self.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise DecodingError(f"dtype {dtype!r} is unknown: set float32, bfloat16 or float16")
        tokenizer = load_tokenizer(self.folder)
        model = load_model(self.folder, dtype, device)
        mask_token_id(model, tokenizer)  # may add a row to the table: now, before any packing
        linears = choose_linears(model, self.linears or "auto")
        return Opened(model, tokenizer, self.folder, linears)


def locate(
    model: Any, tokenizer: Any, dtype: str | None, device: str | None, linears: Linears | None
) -> Located:
    """Find a checkpoint by its reference, or where a loaded model came from."""
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise DecodingError("tokenizer: a checkpoint brings its own; leave it out")
        return Located(None, None, resolve_checkpoint(model), dtype, device, linears)
    if tokenizer is None:
        raise DecodingError("a loaded model needs its tokenizer: add tokenizer=…")
    if not getattr(tokenizer, "chat_template", None):
        raise DecodingError("the tokenizer has no chat template: set tokenizer.chat_template")
    if (dtype, device, linears) != (None, None, None):
        raise DecodingError(
            "dtype, device and linears are those of the loaded model: leave them out"
        )
    folder = Path(str(getattr(model, "name_or_path", "")))
    return Located(model, tokenizer, folder if folder.is_dir() else None, None, None, None)


def _device(wished: str | None) -> str:
    if wished is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wished)
    except RuntimeError:
        raise DecodingError(f"device {wished!r} is unknown: set cpu, cuda or cuda:NUMBER") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = torch.cuda.device_count() or "no"
        raise DecodingError(
            f"device {wished!r}: torch sees {gpus} GPUs here; leave it out to have one chosen"
        )
    return wished
