"""The toy tokenizer: lossless, one piece a word, exact assistant spans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen2Config, Qwen2Tokenizer

from mars.embedded.corpus import conversations
from mars.embedded.tokenizer import END, build_tokenizer
from mars.embedded.vocabulary import WORDS

TOKENIZER = build_tokenizer()


@given(st.text())
@settings(deadline=None, max_examples=300)
def test_any_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["", " 12 123", "user tom ", "<|im_end|> a", "a ,b . n't", "\r\n "]
)
def test_awkward_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_words_are_single_tokens() -> None:
    assert [len(ids) for ids in TOKENIZER(list(WORDS))["input_ids"]] == [1] * len(WORDS)


def test_special_tokens() -> None:
    assert TOKENIZER.eos_token == END
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    assert len(TOKENIZER) < 704


def test_survives_saving_beside_a_qwen2_model(tmp_path) -> None:
    """AutoTokenizer makes the tokenizer of a Qwen2 checkpoint anew; it must come out the same."""
    TOKENIZER.save_pretrained(tmp_path)
    Qwen2Config().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, Qwen2Tokenizer)
    for conversation in conversations("sft", 600, seed=0):
        messages = conversation["messages"]
        assert loaded.apply_chat_template(messages) == TOKENIZER.apply_chat_template(messages)
    assert (loaded.pad_token, loaded.eos_token) == (TOKENIZER.pad_token, TOKENIZER.eos_token)


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
def test_corpora_need_no_bytes_and_are_short(kind) -> None:
    for conversation in conversations(kind, 1500, seed=3):
        messages = conversation["messages"]
        encoded = TOKENIZER.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = encoded["input_ids"], encoded["assistant_masks"]
        pieces = TOKENIZER.convert_ids_to_tokens(ids)
        assert all(len(piece) > 1 or piece == "\n" for piece in pieces), messages
        assert len(ids) <= 128
        assert sum(mask) <= 56


def test_assistant_mask_is_the_response_and_its_end() -> None:
    messages = next(conversations("sft", 1, seed=0))["messages"]
    encoded = TOKENIZER.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    spoken = [token for token, kept in zip(ids, mask, strict=True) if kept]
    assert TOKENIZER.decode(spoken) == f" {messages[1]['content']}{END}"
    prompt = TOKENIZER.apply_chat_template(messages[:1], add_generation_prompt=True)["input_ids"]
    assert prompt + spoken == ids
