"""Text as it comes: what of a growing response can be shown without ever taking it back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_HALF = "\ufffd"
"""What a tokenizer decodes the bytes of an unfinished character to."""

_RAW_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A byte-fallback token; a whole run of them is decoded anew with each further one."""


class TextStream:
    """The text of a response, in pieces that concatenate to what all of it decodes to.

    Special tokens are not shown, nor anything from a stop sequence on. What may still change is
    held back: bytes of a character that is not whole, and what may be the start of a stop sequence.

    Args:
        tokenizer: of ``transformers``.
        stop: stop sequences, as text.
    """

    window = 64
    """Tokens decoded at a push before the older ones are let go."""
    context = 16
    """Tokens then kept, for decoders that treat the first token of a text apart."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._known = 0  # characters of the window's text that were taken into the tail
        self._tail = ""  # text that is settled, but may be the start of a stop sequence
        self._stopped = False

    def push(self, ids: Sequence[int]) -> str:
        """The text that further tokens settle."""
        self._ids += ids
        text = self._decode(self._ids)
        settled = len(text.rstrip(_HALF))
        if self._ids and self._is_raw_byte(self._ids[-1]):
            settled = self._known
        self._take(text[self._known : settled])
        self._known = max(self._known, settled)
        if len(self._ids) > self.window and self._known == len(text):
            self._shorten(text)
        return self._show(ended=False)

    def close(self) -> str:
        """The rest, once no token follows."""
        self._take(self._decode(self._ids)[self._known :])
        self._ids, self._known = [], 0
        return self._show(ended=True)

    def _take(self, text: str) -> None:
        if not self._stopped:
            self._tail += text

    def _show(self, ended: bool) -> str:
        """Cut off of the tail what no stop sequence can begin in, and all of it at the end."""
        found = [at for text in self._stop if (at := self._tail.find(text)) >= 0]
        if found:
            shown, self._tail, self._stopped = self._tail[: min(found)], "", True
            return shown
        held = 0 if ended else max((_overlap(self._tail, text) for text in self._stop), default=0)
        cut = len(self._tail) - held
        shown, self._tail = self._tail[:cut], self._tail[cut:]
        return shown

    def _shorten(self, text: str) -> None:
        """Let old tokens go, where the ones that stay read the same without them."""
        kept = self._ids[-self.context :]
        short = self._decode(kept)
        if short and text.endswith(short):
            self._ids, self._known = kept, len(short)

    def _is_raw_byte(self, token: int) -> bool:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        return piece is not None and _RAW_BYTE.fullmatch(piece) is not None

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def whole_text(tokenizer: Any, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    """The text of a finished response: without special tokens, cut at the first stop sequence."""
    stream = TextStream(tokenizer, stop)
    return stream.push(ids) + stream.close()


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that is a start of a stop sequence."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
