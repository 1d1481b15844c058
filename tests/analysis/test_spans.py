"""Spans: the text of each forward, from a record that holds no token ids."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from mars.analysis.spans import Span, spans, tokenizer_of

from . import synthetic

FILE = synthetic.ROOT / "mars/embedded/checkpoints/toy-s/tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FILE))


def record(text: str, accepted: list[int], finish: str = "end_of_turn") -> dict:
    return {"output": text, "accepted": accepted, "tokens": sum(accepted), "finish": finish}


def test_each_forward_has_the_text_that_it_accepted(tokenizer):
    made = record(" the answer is 18 .", [2, 1, 3])  # the end of turn is the sixth token
    assert spans(made, tokenizer) == [(" the answer", 2), (" is", 1), (" 18 .", 3)]
    assert spans(record(" is 18", [1, 1, 1]), tokenizer)[-1] == Span("", 1)


def test_an_answer_that_was_cut_has_no_end_of_turn(tokenizer):
    assert spans(record(" is 18", [1, 1], "budget"), tokenizer) == [(" is", 1), (" 18", 1)]
    assert spans(record(" is 18", [1, 2], "budget"), tokenizer) is None


def test_a_stop_sequence_is_counted_and_not_shown(tokenizer):
    assert spans(record(" is 18", [1, 3], "stop"), tokenizer) == [(" is", 1), (" 18", 3)]
    assert spans(record(" is 18", [1, 9], "stop"), tokenizer) is None


def test_a_character_of_several_tokens_belongs_to_the_forward_that_began_it(tokenizer):
    assert len(tokenizer.encode("é", add_special_tokens=False).ids) == 2
    found = spans(record("é is", [1, 1, 1, 1]), tokenizer)
    assert found == [("é", 1), ("", 1), (" is", 1), ("", 1)]


@pytest.mark.parametrize(
    "made",
    [
        record("", [1]),  # a benchmark whose answers are not kept, or an empty answer
        record(" is 18", []),
        {**record(" is 18", [1, 1, 1]), "tokens": 4},
        record(" the 1 8", [1, 1, 1]),  # not the tokens that were counted
        {"accepted": [1], "tokens": 1, "finish": "stop"},
    ],
)
def test_what_does_not_add_up_is_not_shown(made, tokenizer):
    assert spans(made, tokenizer) is None


def test_whatever_was_decoded_comes_back_token_by_token(tokenizer):
    chosen = random.Random(0)
    words = list(range(256, tokenizer.get_vocab_size() - 3))
    checked = 0
    for _ in range(50):
        ids = [chosen.choice(words) for _ in range(chosen.randint(1, 30))]
        accepted, left = [], len(ids) + 1
        while left:
            accepted.append(chosen.randint(1, min(4, left)))
            left -= accepted[-1]
        text = tokenizer.decode(ids)
        if tokenizer.encode(text, add_special_tokens=False).ids != ids:
            continue  # a text that is never tokenised so, as the model would not write it either
        found = spans(record(text, accepted), tokenizer)
        assert found is not None
        at = 0
        for span in found:
            assert span.text == tokenizer.decode(ids[at : at + span.accepted])
            at += span.accepted
        checked += 1
    assert checked > 40


def test_the_tokenizer_is_the_checkpoints_own_or_its_bases(study, tmp_path):
    base = tokenizer_of(study, tmp_path, 0, "toy-s", "base")
    assert base is not None
    mine = tmp_path / "seed0/toy-s/mars_b4/model"
    mine.mkdir(parents=True)
    (mine / "tokenizer.json").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    assert tokenizer_of(study, tmp_path, 0, "toy-s", "mars_b4") is not base
    (mine / "tokenizer.json").write_text("broken", encoding="utf-8")
    assert tokenizer_of(study, tmp_path, 0, "toy-s", "mars_b4") is None
