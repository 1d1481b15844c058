"""Configurations of plain architectures, whatever type and code a checkpoint names.

The paper's released checkpoints name a type of their own (``a2d-qwen2``) and code that comes with
it, though their weights are those of plain Qwen2. They are read as what they are: no code of a
checkpoint is ever imported, and its files stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from mars.models.files import CheckpointError, read_json

_RENAMED = re.compile(r"a2d[-_](qwen2|qwen3|llama)")
_OF_CODE = ("auto_map", "architectures", "model_type")


def plain_config(folder: Path) -> PretrainedConfig | None:
    """The plain configuration of a checkpoint that names code of its own; None: it names none.

    Raises:
        CheckpointError: its type is none that transformers knows, under any name.
    """
    raw = read_json(folder / "config.json", "make it again")
    named = str(raw.get("model_type"))
    renamed = _RENAMED.fullmatch(named)
    kind = renamed[1] if renamed else named
    if kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type {named!r} is none that transformers knows, and "
            "code that comes with a checkpoint is not run; use one of qwen2, qwen3 or llama"
        )
    if renamed is None and "auto_map" not in raw:
        return None
    values: dict[str, Any] = {key: raw[key] for key in raw if key not in _OF_CODE}
    return CONFIG_MAPPING[kind].from_dict(values)
