"""A row of a dataset → chat messages: the forms known, told apart by their columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from mars.data.encoding import NO_END, REWRITTEN, Message, RowError

PAIRS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"))
TURNS = ("messages", "conversations")
KNOWN = (
    "'messages' (role, content), 'conversations' (from, value), 'prompt' and 'response', or "
    "'question' and 'answer'"
)

_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "model": "assistant", "system": "system", "tool": "tool",
    "observation": "tool", "function": "tool",
}  # fmt: skip
"""What ShareGPT files call the speakers, and what chat templates do."""

UNREADABLE = {"not JSON", "no known form", NO_END, REWRITTEN}
"""Kinds of faults that are no matter of single rows where all of them have one."""


def columns_of(columns: Collection[str]) -> tuple[str, ...] | None:
    """The columns that hold the conversation; None where the form is none of the known."""
    for name in TURNS:
        if name in columns:
            return (name,)
    for pair in PAIRS:
        if set(pair) <= set(columns):
            return (*pair, "system") if "system" in columns else pair
    return None


def unknown_form(columns: Collection[str]) -> str:
    """What to say of columns that are none of the known forms."""
    return f"its columns are {', '.join(map(str, columns)) or 'none'}; known are {KNOWN}"


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises RowError."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise RowError("not JSON", "not UTF-8 text; each line is a JSON object") from None
    except (json.JSONDecodeError, RecursionError) as error:
        why = getattr(error, "msg", "nested too deeply")
        raise RowError("not JSON", f"not JSON ({why}); each line is an object") from None
    if not isinstance(row, dict):
        raise RowError("not JSON", "not a JSON object; each line is one")
    return row


def messages_of(row: Mapping[str, Any]) -> list[Message]:
    """The conversation of a row, as chat templates take it. Raises RowError."""
    columns = columns_of(row.keys())
    if columns is None:
        raise RowError("no known form", f"no known form: {unknown_form(row.keys())}")
    if columns[0] in TURNS:
        return _turns(columns[0], row[columns[0]])
    prompt, response, *more = (row[name] for name in columns)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    if more and more[0]:
        messages.insert(0, {"role": "system", "content": more[0]})
    return messages


def _turns(column: str, told: Any) -> list[Message]:
    if isinstance(told, Mapping):  # a sequence of structs, as older datasets store it
        lists = [value for value in told.values() if isinstance(value, list)]
        told = [dict(zip(told, values, strict=False)) for values in zip(*lists, strict=False)]
    if not isinstance(told, (list, tuple)) or not told:
        raise RowError("malformed messages", f"{column!r} is not a list of messages")
    return [_message(number, message) for number, message in enumerate(told)]


def _message(number: int, raw: Any) -> Message:
    """One message in the words of chat templates; what is null is left out."""
    if not isinstance(raw, Mapping):
        raise RowError("malformed messages", f"message {number} is not an object")
    message = {name: value for name, value in raw.items() if value is not None}
    if "from" not in message or "role" in message:
        return message
    role = _ROLES.get(str(message.pop("from")).lower())
    if role is None:
        raise RowError("malformed messages", f"message {number}: from {raw['from']!r} is unknown")
    return {"role": role, "content": message.pop("value", None), **message}
