"""Any conversation, real tokenizers: every assistant turn is found exactly, and cut honestly."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.config import Data
from mars.data import encode, encode_all, load_examples
from mars.embedded.tokenizer import build_tokenizer as build_toy
from mars.embedded.vocabulary import WORDS
from mars.models import load_tokenizer

from .conftest import ROOT

SMOLLM2 = ROOT / "results/checkpoints/smollm2-135m-instruct"
"""Made by `make smollm2`."""

TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n"), min_size=1, max_size=40
).filter(str.strip)


def conversations(text):
    """One to four turns, perhaps after a system message."""
    turn = st.tuples(text, text)
    return st.tuples(st.none() | text, st.lists(turn, min_size=1, max_size=4)).map(_messages)


def _messages(told):
    system, turns = told
    messages = [{"role": "system", "content": system}] if system else []
    for prompt, response in turns:
        messages.append({"role": "user", "content": prompt})
        messages.append({"role": "assistant", "content": response})
    return messages


def check_spans(tokenizer, messages):
    """Responses are the assistant's words and an end-of-turn; prompts are what decoding is given.

    Returns:
        The encoded conversation.
    """
    found = encode(tokenizer, messages, 10_000)
    end = tokenizer.eos_token_id
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    assert int(found.turn.max()) + 1 == len(said)
    assert found.ended
    assert torch.equal(found.response, found.turn >= 0)
    for number, content in enumerate(said):
        ids = found.ids[found.turn == number]
        assert int(ids[-1]) == end
        assert end not in ids[:-1].tolist()
        as_it_reads = tokenizer.decode(tokenizer.encode(content, add_special_tokens=False))
        assert tokenizer.decode(ids[:-1]).strip() == as_it_reads.strip()
        before = [i for i, m in enumerate(messages) if m["role"] == "assistant"][number]
        prompt = tokenizer.apply_chat_template(
            messages[:before], add_generation_prompt=True, return_dict=False
        )
        start = int(torch.nonzero(found.turn == number)[0])
        assert found.ids[:start].tolist() == list(prompt)
    return found


def check_cut(tokenizer, messages, whole, length):
    """A cut conversation is the start of the whole one; it ends where a response truly ends."""
    starts = int(torch.nonzero(whole.response)[0])
    if length <= starts:
        with pytest.raises(ValueError, match="none of the response fits"):
            encode(tokenizer, messages, length)
        return
    found = encode(tokenizer, messages, length)
    kept = len(found)
    assert kept <= length
    assert found.ids.tolist() == whole.ids[:kept].tolist()
    assert found.turn.tolist() == whole.turn[:kept].tolist()
    assert bool(found.response[-1])
    assert not whole.response[kept:length].any()  # nothing that fits is left out
    truly = kept == len(whole) or int(whole.turn[kept]) != int(found.turn[-1])
    assert found.ended is truly
    assert (int(found.ids[-1]) == tokenizer.eos_token_id) is truly


TOY = build_toy()
TOY_WORDS = sorted(word.strip() for word in WORDS if word.strip())
TOY_TEXT = st.lists(st.sampled_from(TOY_WORDS), min_size=1, max_size=12).map(" ".join)


@given(conversations(TOY_TEXT), st.integers(8, 120))
@settings(max_examples=60, deadline=None)
def test_any_conversation_of_the_toy_world(messages, length):
    check_cut(TOY, messages, check_spans(TOY, messages), length)


@pytest.fixture(scope="module")
def smollm2():
    if not SMOLLM2.is_dir():
        pytest.skip("reads SmolLM2, a download of 93 MB: `make smollm2` makes it")
    return load_tokenizer(SMOLLM2)


@given(conversations(TEXT.map(str.strip)), st.integers(8, 200))
@settings(max_examples=60, deadline=None)
def test_any_conversation_of_smollm2(smollm2, messages, length):
    """Its template has no markers, and a newline follows every end-of-turn."""
    check_cut(smollm2, messages, check_spans(smollm2, messages), length)


@given(st.lists(conversations(TOY_TEXT), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_together_is_as_one_by_one(many):
    together = encode_all(TOY, many, 90)
    for messages, found in zip(many, together, strict=True):
        alone = encode(TOY, messages, 90)
        assert found.ids.tolist() == alone.ids.tolist()
        assert found.turn.tolist() == alone.turn.tolist()


# --- GSM8K's training set


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory) -> Path:
    """GSM8K's training set as prompts and responses."""
    file = Path(os.environ.get("GSM8K_TRAIN", ""))
    if not file.is_file():
        pytest.skip(
            "reads real GSM8K, which is not in the project: name its train.jsonl in GSM8K_TRAIN"
        )
    made = tmp_path_factory.mktemp("gsm8k") / "rows.jsonl"
    with made.open("w", encoding="utf-8") as out:
        for line in file.read_text(encoding="utf-8").strip().split("\n"):
            row = json.loads(line)
            told = {"prompt": row["question"], "response": row["answer"]}
            out.write(json.dumps(told) + "\n")
    return made


def test_gsm8k_is_read_whole(gsm8k, smollm2):
    data = Data(source=str(gsm8k), stage1_examples=6000, stage2_examples=1473, max_length=512)
    found = load_examples(data, smollm2, [1, 2], 0)
    assert found.report.lost == 0
    assert found.report.rows == len(found) == 7473
    lines = gsm8k.read_text(encoding="utf-8").split("\n")
    for index in range(0, len(found), 97):
        told, example = json.loads(lines[index]), found[index]
        said = smollm2.decode(example.ids[example.response])
        assert said == told["response"] + "<|im_end|>"
        assert example.ended
    assert len(load_examples(data, smollm2, [2], 0)) == 1473


def test_gsm8k_cut_short_keeps_no_end_that_is_none(gsm8k, smollm2):
    data = Data(source=str(gsm8k), stage1_examples=2000, stage2_examples=1, max_length=128)
    found = load_examples(data, smollm2, [1], 0)
    ended = [example.ended for example in found]
    assert 50 < sum(ended) < 1900
    for example in found:
        assert (int(example.ids[-1]) == smollm2.eos_token_id) is example.ended
    too_long = found.report.dropped["prompt too long"]
    assert too_long.count > 10
    assert "raise it or drop the row" in too_long.message
