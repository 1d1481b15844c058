"""Stop sequences: text that ends a response, found while it is being decoded."""

from __future__ import annotations

from typing import Any


class StopFinder:
    """Finds the token that completes one of some stop sequences.

    The text of a response is what the tokenizer decodes, special tokens included. Only the tail
    that a new match can lie in is decoded, and only when a new token could be a match's last one.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._last = {text[-1] for text in stop}
        # A token is at least a byte and a character at most four; the rest is slack for decoders
        # that trim the start of what they decode.
        self._reach = 4 * max(map(len, stop)) + 8
        self._may_end: dict[int, bool] = {}

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _can_end(self, token: int) -> bool:
        known = self._may_end.get(token)
        if known is None:
            text = self._decode([token])
            # U+FFFD: a piece of a character; a space may be the decoder's own, between tokens
            known = bool(self._last & {" ", *text}) or "\ufffd" in text
            self._may_end[token] = known
        return known

    def find(self, ids: list[int], new: int) -> int | None:
        """How many of the last ``new`` tokens of ``ids`` are kept, or None if none completes one.

        The completing token is kept, those after it are not.
        """
        before = len(ids) - new
        for kept in range(1, new + 1):
            if not self._can_end(ids[before + kept - 1]):
                continue
            tail = self._decode(ids[max(0, before + kept - self._reach) : before + kept])
            if any(text in tail for text in self._stop):
                return kept
        return None
