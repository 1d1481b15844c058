"""Stop sequences: text that ends a response, found while it is being decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1


class StopFinder:
    """Finds the token that completes one of some stop sequences.

    ``reach``: how many tokens before the new ones a match can begin in.

    The text of a response is what the tokenizer decodes, special tokens included. Only the tail
    that a new match can lie in is decoded, and only when a new token could be a match's last one.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._last = {text[-1] for text in stop}
        # a token is at least a byte and a character at most four; the rest is slack for decoders
        # that trim the start of what they decode.
        self.reach = 4 * max(map(len, stop)) + 8
        self._may_end: NDArray[np.int8] = np.full(1 << 10, UNKNOWN, dtype=np.int8)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def may_end(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each token could be a match's last one: the same shape, of ids."""
        beyond = int(tokens.max()) - len(self._may_end) + 1
        if beyond > 0:
            more = np.full(max(beyond, len(self._may_end)), UNKNOWN, dtype=np.int8)
            self._may_end = np.concatenate([self._may_end, more])
        found = self._may_end[tokens]
        if (found == UNKNOWN).any():
            for token in np.unique(tokens[found == UNKNOWN]).tolist():
                self._may_end[token] = self._can_end(token)
            found = self._may_end[tokens]
        return found == 1

    def _can_end(self, token: int) -> bool:
        text = self._decode([token])
        # U+FFFD: a piece of a character; a space may be the decoder's own, between tokens
        return bool(self._last & {" ", *text}) or "\ufffd" in text

    def find(self, ids: list[int], new: int) -> int | None:
        """How many of the last ``new`` tokens of ``ids`` are kept, or None if none completes one.

        The completing token is kept, those after it are not.
        """
        before = len(ids) - new
        may_end = self.may_end(np.asarray(ids[before:], dtype=np.int64))
        for kept in (np.flatnonzero(may_end) + 1).tolist():
            tail = self._decode(ids[max(0, before + kept - self.reach) : before + kept])
            if any(text in tail for text in self._stop):
                return kept
        return None
