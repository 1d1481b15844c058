"""Stop sequences are found at the token that completes them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mars.decoding.stopping import StopFinder
from mars.embedded.tokenizer import build_tokenizer

from .tiny_models import PROPERTY, byte_tokenizer

TOKENIZERS = {"bytes": byte_tokenizer(), "embedded": build_tokenizer()}


def first_stop(tokenizer, ids: list[int], stop: tuple[str, ...]) -> int | None:
    """The obvious way: decode everything after every token."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False)
        if any(s in text for s in stop):
            return count
    return None


def found_in_steps(tokenizer, ids: list[int], stop: tuple[str, ...], steps: list[int]):
    finder, done = StopFinder(tokenizer, stop), 0
    for step in steps:
        new = min(step, len(ids) - done)
        if new == 0:
            return None
        done += new
        kept = finder.find(ids[:done], new)
        if kept is not None:
            return done - new + kept
    return None


@pytest.mark.parametrize("name", TOKENIZERS)
@PROPERTY
@given(data=st.data())
def test_same_as_decoding_everything_after_every_token(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=60))
    steps = data.draw(st.lists(st.integers(1, 5), min_size=60, max_size=60))
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = (text[start : start + data.draw(st.integers(1, 8))], "never there")
    assume(stop[0])
    # half a character decodes to U+FFFD, which later bytes turn into another one
    assume("\ufffd" not in stop[0])
    assert found_in_steps(tokenizer, ids, stop, steps) == first_stop(tokenizer, ids, stop)


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("abENDcd", "END", "abEND"),  # spans tokens: "EN" is one, "D" another
        ("so é!", "é", "so é"),  # a character of two tokens
        ("a\n\nb", "\n", "a\n\n"),  # in the middle of one token, which is kept whole
        ("one xtwo", "one ", "one x"),  # ends inside a token that starts with a space
        ("Q:A:Q:", "A:Q", "Q:A:Q:"),
    ],
)
def test_by_hand(text, stop, kept):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text)
    for step in (1, 2, 5):
        count = found_in_steps(tokenizer, ids, (stop,), [step] * len(ids))
        assert tokenizer.decode(ids[:count]) == kept
