"""The checkpoint under evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class EvaluationError(ValueError):
    """An evaluation that cannot be run; the message is one line for the user."""


@dataclass(frozen=True)
class Source:
    """A checkpoint as evaluation needs it; the weights are loaded when first asked for.

    Attributes:
        tokenizer: with a chat template.
        checkpoint: hash of the checkpoint.
        context: positions of the model.
        dtype: of the computation; device: where it takes place.
        mask_token: its id, and what it is (see ``models.mask_token_id``).
        load: gives the model; None where no model may run (re-scoring).
    """

    tokenizer: Any
    checkpoint: str
    context: int
    dtype: str
    load: Callable[[], Any] | None
    device: str = "cpu"
    mask_token: tuple[int | None, str] = (None, "not known")


def open_checkpoint(
    ref: str | Path, dtype: str = "float32", device: str = "cpu", generate: bool = True
) -> Source:
    """The source of a checkpoint, checked but not yet loaded (see ``models.resolve_checkpoint``).

    Args:
        ref: the checkpoint.
        dtype: auto: bfloat16 where the device computes in it, else float32.
        device: cpu or cuda.
        generate: whether its model may run.
    """
    from mars import models

    folder = models.resolve_checkpoint(ref)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    loaded: list[Any] = []
    dtype = models.choose_dtype(dtype, device)

    def load() -> Any:
        if not loaded:
            loaded.append(models.load_model(folder, dtype, device))
        return loaded[0]

    tokenizer = models.load_tokenizer(folder)
    return Source(
        tokenizer=tokenizer,
        checkpoint=models.checkpoint_hash(folder),
        context=_positions(config, folder),
        dtype=dtype,
        load=load if generate else None,
        device=device,
        mask_token=models.told_mask_token(config, tokenizer),
    )


def _positions(config: dict[str, Any], folder: Path) -> int:
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        raise EvaluationError(
            f"{folder / 'config.json'}: no max_position_embeddings; add the model's context length"
        )
    return positions


def choose_device(wanted: str | None = None) -> str:
    """The device asked for, but the CPU where a GPU is asked for (as lm-eval does) and absent."""
    import torch

    if wanted is None or (wanted.startswith("cuda") and not torch.cuda.is_available()):
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
