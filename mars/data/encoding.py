"""One conversation → token ids, and exactly which of them the assistant wrote.

Responses are found in the rendered text (by the template's ``{% generation %}`` markers, or else
by rendering the conversation up to each response) and carried to tokens by their offsets, never
by comparing ids with the pad id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class RowError(ValueError):
    """A conversation that cannot be trained on; the caller adds where it stands."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


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
        RowError: with the index of the first conversation that cannot be trained on.
    """
    end = end_of_turn_id(tokenizer)
    encoded: list[Encoded] = []
    for start in range(0, len(conversations), CHUNK):
        texts, spans = [], []
        for index, messages in enumerate(conversations[start : start + CHUNK], start):
            try:
                _check(messages)
                text, found = _render(tokenizer, messages)
            except RowError as error:
                raise RowError(str(error), index) from None
            texts.append(text)
            spans.append(found)
        tokens = tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for place, found in enumerate(spans):
            ids = np.array(tokens["input_ids"][place], dtype=np.int64)
            offsets = np.array(tokens["offset_mapping"][place], dtype=np.int64).reshape(-1, 2)
            try:
                encoded.append(_cut(ids, _turns(ids, offsets, found, end), end, max_length))
            except RowError as error:
                raise RowError(str(error), start + place) from None
    return encoded


def _check(messages: Sequence[Message]) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RowError("'messages' is not a list of messages")
    responses = 0
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise RowError(f"message {number} needs a 'role' and a 'content'")
        if not isinstance(message["content"], str):
            raise RowError(f"message {number}: its content is not text")
        if message["role"] == "assistant":
            responses += 1
            if not message["content"].strip():
                raise RowError(f"message {number}: the response is empty; drop the row")
        elif message["role"] == "user" and not message["content"].strip():
            raise RowError(f"message {number}: the prompt is empty; drop the row")
    if not responses:
        raise RowError("no response: no message has the role 'assistant'; drop the row")
    if messages[0]["role"] == "assistant":
        raise RowError("the first message is a response: put the prompt before it")


def _render(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
    """The conversation's text, and the character span of each response."""
    template: Any = tokenizer.chat_template
    template = template["default"] if isinstance(template, dict) else template
    special: dict[str, Any] = dict(tokenizer.special_tokens_map)
    if _MARKER.search(template):
        rendered: Any = render_jinja_template(
            [list(messages)], chat_template=template, return_assistant_tokens_mask=True, **special
        )
        (text,), (spans,) = rendered
        return text, [(int(start), int(stop)) for start, stop in spans]
    return _spans_by_prefix(tokenizer, messages)


def _spans_by_prefix(
    tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[str, list[tuple[int, int]]]:
    def text_of(count: int, prompt: bool = False) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(messages[:count]), tokenize=False, add_generation_prompt=prompt
            )
        )

    text, spans = text_of(len(messages)), []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = text_of(number, prompt=True), text_of(number + 1)
            if not (after.startswith(before) and text.startswith(after)):
                raise RowError(
                    "the chat template rewrites earlier turns, so responses cannot be told "
                    "apart; add {% generation %} markers to the template"
                )
            spans.append((len(before), len(after)))
    return text, spans


def _turns(
    ids: np.ndarray, offsets: np.ndarray, spans: list[tuple[int, int]], end: int
) -> np.ndarray:
    """(L,) response index of each token, −1 outside; a response reaches to its end-of-turn."""
    turn = np.full(len(ids), -1, dtype=np.int64)
    for number, (start, stop) in enumerate(spans):
        inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
        if not len(inside):
            raise RowError(f"response {number} has no token; drop the row")
        first, last = int(inside[0]), int(inside[-1])
        if ids[last] != end:
            ends = np.flatnonzero(ids[first : last + 1] == end)
            if last + 1 < len(ids) and ids[last + 1] == end:
                last += 1
            elif len(ends):  # the template writes something (a newline) after end-of-turn
                last = first + int(ends[-1])
        turn[first : last + 1] = number
    return turn


def _cut(ids: np.ndarray, turn: np.ndarray, end: int, max_length: int) -> Encoded:
    """At most ``max_length`` tokens, and nothing after the last response."""
    kept = turn[:max_length]
    if not (kept >= 0).any():
        raise RowError(
            f"the prompt has {int(np.flatnonzero(turn >= 0)[0])} tokens, none of the response fits "
            f"in data.max_length {max_length}: raise it or drop the row"
        )
    length = int(np.flatnonzero(kept >= 0)[-1]) + 1
    cut = length < len(turn) and turn[length] == turn[length - 1]
    return Encoded(
        ids=torch.from_numpy(ids[:length].copy()),
        response=torch.from_numpy(turn[:length] >= 0),
        turn=torch.from_numpy(turn[:length].copy()),
        ended=bool(ids[length - 1] == end and not cut),
    )
