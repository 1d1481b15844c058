"""Text shown as it comes is never taken back, and adds up to the whole."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mars.decoding.generate.text import TextStream, whole_text
from mars.embedded.tokenizer import build_tokenizer

from .tiny_models import PROPERTY, byte_tokenizer


@functools.cache
def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As SentencePiece's: spaces inside the pieces, and bytes for what has no piece."""
    pieces = ["<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁a", "b", "▁", "c▁"]
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "embedded": build_tokenizer(),
    "byte fallback": fallback_tokenizer(),
}


def plain(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def drawn_ids(data, tokenizer, most=300):
    """Random tokens, among them whole characters of several bytes."""
    some = [tokenizer.encode(t, add_special_tokens=False) for t in ("é", "😀", "ab ", "\ufffd")]
    token = st.integers(0, len(tokenizer) - 1).map(lambda i: [i])
    parts = data.draw(st.lists(token | st.sampled_from(some), max_size=most))
    return [i for part in parts for i in part]


def pieces(stream, ids, steps):
    """What is shown after each push, and at the end."""
    done, turn = 0, 0
    while done < len(ids):
        step = steps[turn % len(steps)]
        yield stream.push(ids[done : done + step])
        done, turn = done + step, turn + 1
    yield stream.close()


STEPS = st.lists(st.integers(1, 5), min_size=1, max_size=9)


@pytest.mark.parametrize("name", TOKENIZERS)
@PROPERTY
@given(data=st.data())
def test_the_pieces_are_the_whole_text(name, data):
    tokenizer = TOKENIZERS[name]
    ids = drawn_ids(data, tokenizer)
    made = list(pieces(TextStream(tokenizer), ids, data.draw(STEPS)))
    assert "".join(made) == plain(tokenizer, ids) == whole_text(tokenizer, ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@PROPERTY
@given(data=st.data())
def test_no_half_character_is_shown(name, data):
    """Of valid text, however its tokens are cut into pushes, a piece never ends in U+FFFD."""
    tokenizer = TOKENIZERS[name]
    alphabet = "é😀" if name == "byte fallback" else "aé😀 €\n"
    text = data.draw(st.text(alphabet, max_size=60))
    ids = tokenizer.encode(text, add_special_tokens=False)
    if name == "byte fallback":
        ids = [i for character in text for i in {"é": (0, 1), "😀": (2, 3, 4, 5)}[character]]
    made = list(pieces(TextStream(tokenizer), ids, data.draw(STEPS)))
    assert "".join(made) == text
    assert not any("\ufffd" in piece for piece in made)


@pytest.mark.parametrize("name", ["bytes", "embedded"])
@PROPERTY
@given(data=st.data())
def test_nothing_from_a_stop_sequence_on_is_shown(name, data):
    tokenizer = TOKENIZERS[name]
    ids = drawn_ids(data, tokenizer, most=60)
    text = plain(tokenizer, ids)
    start = data.draw(st.integers(0, len(text)))
    cut = text[start : start + data.draw(st.integers(1, 6))]
    stop = tuple(filter(None, (cut, "never there")))
    # the decoder stops at the token that completes a stop sequence, so that the first is whole
    kept = next((n for n in range(len(ids)) if any(s in plain(tokenizer, ids[:n]) for s in stop)),
                len(ids))  # fmt: skip
    ids = ids[:kept]
    text = plain(tokenizer, ids)
    ends = [text.index(s) for s in stop if s in text]
    expected = text[: min(ends, default=len(text))]
    made = list(pieces(TextStream(tokenizer, stop), ids, data.draw(STEPS)))
    assert "".join(made) == expected == whole_text(tokenizer, ids, stop)


def test_text_is_shown_as_soon_as_it_is_settled():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ("END",))
    first, second = tokenizer.encode("é")
    assert stream.push([first]) == ""
    assert stream.push([second]) == "é"
    assert stream.push(tokenizer.encode("a E")) == "a "
    assert stream.push(tokenizer.encode("N")) == ""
    assert stream.push(tokenizer.encode("C")) == "ENC"
    assert stream.push(tokenizer.encode("E")) == ""
    assert stream.close() == "E"


def test_a_long_text_is_not_decoded_over_and_over(monkeypatch):
    tokenizer = byte_tokenizer()
    decoded = []
    stream = TextStream(tokenizer)
    decode = stream._decode
    monkeypatch.setattr(stream, "_decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    for token in tokenizer.encode("so it goes, " * 100):
        stream.push([token])
    assert max(decoded) <= stream.window + 1
