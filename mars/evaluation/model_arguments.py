"""What is written after ``--model_args``: checked, the nearest known name named where wrong."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from mars.config import Decoding
from mars.decoding.contract import DecodingError
from mars.decoding.make import check_settings
from mars.evaluation.source import EvaluationError


def positive(name: str, value: int | str) -> int:
    """A whole number of at least 1. Raises EvaluationError."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise EvaluationError(f"{name} is {value!r}: give a whole number of at least 1")
    return number


def decoding_settings(given: dict[str, Any]) -> Decoding:
    """The decoding settings among the model's arguments; anything else is an error."""
    own = ["pretrained", "batch_size", "max_new_tokens", "dtype", "device", "records", "benchmark"]
    known = [*own, *Decoding.model_fields]
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise EvaluationError(f"model argument {name!r} is unknown; {hint}")
    values = {"decoder": "mars", **given}
    if values["decoder"] != "ar":
        values.setdefault("block_size", 4)
    try:
        settings = Decoding(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise EvaluationError(
            f"model argument {name}={problem['input']}: {problem['msg']}"
        ) from None
    try:
        check_settings(settings)
    except DecodingError as error:
        raise EvaluationError(f"model arguments: {error}") from None
    return settings
