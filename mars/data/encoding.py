"""One conversation → token ids, and exactly which of them the assistant wrote.

Responses are found in the rendered text (by the template's ``{% generation %}`` markers, or else
by rendering the conversation up to each response) and carried to tokens by their offsets, never
by comparing ids with the pad id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]
NO_END, REWRITTEN = "no end-of-turn", "rewritten turns"
"""Kinds of faults that a template and a tokenizer have with most rows, or with none."""
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class RowError(ValueError):
    """A conversation that cannot be trained on; the caller adds where it stands.

    Attributes:
        kind: what reports count it under, a few words.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:  # it crosses from one process to another
        return type(self), (self.kind, str(self))


class TemplateError(RowError):
    """The chat template itself is at fault, so that no row could be trusted."""

    def __init__(self, message: str) -> None:
        super().__init__("chat template", message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


@dataclass(frozen=True)
class Encoded:
    """A tokenised conversation, ending with its last response.

    Attributes:
        ids: (L,) long.
        response: (L,) bool; assistant tokens, end-of-turn included.
        turn: (L,) long; which response a token belongs to, −1 outside.
        ended: the last response ends with end-of-turn (it was not cut).
    """

    ids: Tensor
    response: Tensor
    turn: Tensor
    ended: bool

    def __len__(self) -> int:
        return len(self.ids)


def end_of_turn_id(tokenizer: Tokenizer) -> int:
    """The token that ends a response: the tokenizer's end of sequence."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no eos_token: name the token that ends a response")
    return int(tokenizer.eos_token_id)


def encode(tokenizer: Tokenizer, messages: Sequence[Message], max_length: int) -> Encoded:
    """Tokenise one conversation. Raises RowError where it has no response to learn."""
    return encode_all(tokenizer, [messages], max_length)[0]


CHUNK = 1024
"""Conversations tokenised together: many for speed, few for memory."""


def encode_all(
    tokenizer: Tokenizer, conversations: Sequence[Sequence[Message]], max_length: int
) -> list[Encoded]:
    """``encode`` for many, tokenised together (several times faster).

    Raises:
        RowError: of the first conversation that cannot be trained on.
    """
    encoded: list[Encoded] = []
    for found in encode_each(tokenizer, conversations, max_length):
        if isinstance(found, RowError):
            raise found
        encoded.append(found)
    return encoded


def encode_each(
    tokenizer: Tokenizer, conversations: Sequence[Sequence[Message]], max_length: int
) -> Iterator[Encoded | RowError]:
    """Every conversation in order, or what is wrong with it.

    Raises:
        TemplateError: the template is at fault, not the conversation.
    """
    end = end_of_turn_id(tokenizer)
    for start in range(0, len(conversations), CHUNK):
        rendered = [_try_render(tokenizer, c) for c in conversations[start : start + CHUNK]]
        texts = [found[0] for found in rendered if not isinstance(found, RowError)]
        tokens = tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        ) if texts else {}  # fmt: skip
        place = 0
        for found in rendered:
            if isinstance(found, RowError):
                yield found
                continue
            ids = np.array(tokens["input_ids"][place], dtype=np.int64)
            offsets = np.array(tokens["offset_mapping"][place], dtype=np.int64).reshape(-1, 2)
            place += 1
            try:
                turn = _turns(ids, offsets, found[1], end)
                _check_ends(tokenizer, ids, turn, end)
                yield _cut(ids, turn, end, max_length)
            except RowError as error:
                yield error


def _check(messages: Sequence[Message]) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RowError("malformed messages", "'messages' is not a list of messages")
    responses = 0
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise RowError("malformed messages", f"message {number} needs a 'role' and a 'content'")
        if not isinstance(message["content"], str) or not isinstance(message["role"], str):
            raise RowError(
                "malformed messages", f"message {number}: its content is not text; drop the row"
            )
        if not _is_unicode(message["content"]):
            raise RowError(
                "malformed messages", f"message {number}: half a character (a lone surrogate)"
            )
        if message["role"] == "assistant":
            responses += 1
            if not message["content"].strip():
                raise RowError(
                    "empty response", f"message {number}: the response is empty; drop the row"
                )
        elif message["role"] == "user" and not message["content"].strip():
            raise RowError("empty prompt", f"message {number}: the prompt is empty; drop the row")
    if not responses:
        raise RowError(
            "no response", "no response: no message has the role 'assistant'; drop the row"
        )
    if messages[0]["role"] == "assistant":
        raise RowError("no prompt", "the first message is a response: put the prompt before it")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Rendered = tuple[str, list[tuple[int, int]]]
"""A conversation's text, and the character span of each response."""


def _try_render(tokenizer: Tokenizer, messages: Sequence[Message]) -> Rendered | RowError:
    try:
        _check(messages)
        rendered = _render(tokenizer, messages)
    except TemplateError:
        raise
    except RowError as error:
        return error
    except Exception as error:
        # templates take what they find: a call that is 5, a name that is null
        why = " ".join(str(error).split())
        return RowError("refused by the template", f"the chat template refuses it: {why}")
    if not _is_unicode(rendered[0]):
        return RowError("malformed messages", "half a character (a lone surrogate)")
    return rendered


def _render(tokenizer: Tokenizer, messages: Sequence[Message]) -> Rendered:
    template: Any = tokenizer.chat_template
    template = template["default"] if isinstance(template, dict) else template
    if not template:
        raise TemplateError("the tokenizer has no chat template: give it one")
    special: dict[str, Any] = dict(tokenizer.special_tokens_map)
    if _MARKER.search(template):
        rendered: Any = render_jinja_template(
            [list(messages)], chat_template=template, return_assistant_tokens_mask=True, **special
        )
        (text,), (spans,) = rendered
        told = sum(message["role"] == "assistant" for message in messages)
        if len(spans) != told:
            raise TemplateError(
                f"the chat template's {{% generation %}} markers enclose {len(spans)} of {told} "
                "responses; put them around every assistant message"
            )
        return text, [(int(start), int(stop)) for start, stop in spans]
    return _spans_by_prefix(tokenizer, messages)


def _spans_by_prefix(tokenizer: Tokenizer, messages: Sequence[Message]) -> Rendered:
    """Without markers: a response is what follows the prompt that asks for it."""

    def text_of(count: int, prompt: bool = False) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(messages[:count]), tokenize=False, add_generation_prompt=prompt
            )
        )

    text, spans = text_of(len(messages)), []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = text_of(number, prompt=True)
            after = text if number + 1 == len(messages) else text_of(number + 1)
            if not text.startswith(before):
                raise RowError(
                    REWRITTEN,
                    "the chat template rewrites earlier turns, so responses cannot be told "
                    "apart; drop the row, or add {% generation %} markers to the template",
                )
            if text.startswith(after):
                stop = len(after)
            else:  # what was last is written otherwise (Qwen3: with a place for thoughts)
                stop = _next_end(tokenizer, text, len(before), number, message)
            said = text[len(before) : stop].lstrip()
            if not said.startswith(message["content"].strip()) and before == text_of(number):
                raise TemplateError(
                    "the chat template writes no generation prompt, so a response cannot be told "
                    "apart from its header; add {% generation %} markers to the template"
                )
            spans.append((len(before), stop))
    return text, spans


def _next_end(tokenizer: Tokenizer, text: str, start: int, number: int, message: Message) -> int:
    """Where a response that starts at ``start`` ends: its end-of-turn is the next one."""
    end = str(tokenizer.eos_token)
    if end in json.dumps(message, ensure_ascii=False, default=str):
        raise RowError(
            "end-of-turn in a response",
            f"message {number} has an end-of-turn inside its text; drop the row",
        )
    at = text.find(end, start)
    return len(text) if at < 0 else at + len(end)


def _turns(
    ids: np.ndarray, offsets: np.ndarray, spans: list[tuple[int, int]], end: int
) -> np.ndarray:
    """(L,) response index of each token, −1 outside; a response reaches to its end-of-turn."""
    turn = np.full(len(ids), -1, dtype=np.int64)
    for number, (start, stop) in enumerate(spans):
        inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
        if not len(inside):
            raise RowError("empty response", f"response {number} has no token; drop the row")
        first, last = int(inside[0]), int(inside[-1])
        if ids[last] != end:
            ends = np.flatnonzero(ids[first : last + 1] == end)
            if last + 1 < len(ids) and ids[last + 1] == end:
                last += 1
            elif len(ends):  # the template writes something (a newline) after end-of-turn
                last = first + int(ends[-1])
        if (ids[first:last] == end).any():
            raise RowError(
                "end-of-turn in a response",
                f"response {number} has an end-of-turn inside its text; drop the row",
            )
        turn[first : last + 1] = number
    return turn


def _check_ends(tokenizer: Tokenizer, ids: np.ndarray, turn: np.ndarray, end: int) -> None:
    """Raise RowError where a response ends otherwise than with end-of-turn: nothing would stop."""
    last = np.flatnonzero((turn >= 0) & (np.append(turn[1:], -1) != turn))
    for place in last[ids[last] != end]:
        said = ids[: place + 1][turn[: place + 1] == turn[place]]
        marks = said[np.isin(said, tokenizer.all_special_ids)]
        other = tokenizer.decode(marks[-1] if len(marks) else said[-1])
        raise RowError(
            NO_END,
            f"the chat template ends a response with {other!r}, and the tokenizer's eos_token is "
            f"{tokenizer.eos_token!r}: name there (tokenizer_config.json) what ends a response",
        )


def _cut(ids: np.ndarray, turn: np.ndarray, end: int, max_length: int) -> Encoded:
    """At most ``max_length`` tokens, and nothing after the last response."""
    kept = turn[:max_length]
    if not (kept >= 0).any():
        raise RowError(
            "prompt too long",
            f"the prompt has {int(np.flatnonzero(turn >= 0)[0])} tokens, none of the response fits "
            f"in data.max_length {max_length}: raise it or drop the row",
        )
    length = int(np.flatnonzero(kept >= 0)[-1]) + 1
    cut = length < len(turn) and turn[length] == turn[length - 1]
    return Encoded(
        ids=torch.from_numpy(ids[:length].copy()),
        response=torch.from_numpy(turn[:length] >= 0),
        turn=torch.from_numpy(turn[:length].copy()),
        ended=bool(ids[length - 1] == end and not cut),
    )
