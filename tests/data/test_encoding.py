"""Conversations → ids and exact assistant spans; rows that cannot be trained on."""

import hashlib
import json

import pytest
from tiny_training import END, build_tokenizer

from mars.config import Data
from mars.data import RowError, TemplateError, encode, load_examples

TWO_TURNS = [
    {"role": "user", "content": "w3 w4"},
    {"role": "assistant", "content": "w5 w6"},
    {"role": "user", "content": "w7"},
    {"role": "assistant", "content": "w8"},
]
CHATML = (
    "{% for m in messages %}{{ '<' + m.role + '> ' + m.content + ' <end>' + ' w40 ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)
"""No markers, and a token (as ChatML's newline) after every end-of-turn."""


@pytest.fixture
def tokenizer():
    return build_tokenizer()


def said(encoded):
    return [(int(t), int(i)) for t, i in zip(encoded.turn, encoded.ids, strict=True) if t >= 0]


def test_spans_are_exact_in_every_turn(tokenizer):
    found = encode(tokenizer, TWO_TURNS, 100)
    assert found.ids.tolist() == [0, 3, 4, END, 1, 5, 6, END, 0, 7, END, 1, 8, END]
    assert found.turn.tolist() == [-1] * 5 + [0] * 3 + [-1] * 4 + [1] * 2
    assert (found.response == (found.turn >= 0)).all()
    assert found.ended


def test_a_header_that_touches_the_response_is_not_part_of_it(tokenizer):
    wanted = encode(tokenizer, TWO_TURNS, 100)
    tokenizer.chat_template = tokenizer.chat_template.replace("'> '", "'>'")
    found = encode(tokenizer, TWO_TURNS, 100)
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.turn.tolist() == wanted.turn.tolist()


def test_the_same_without_generation_markers(tokenizer):
    wanted = said(encode(tokenizer, TWO_TURNS, 100))
    tokenizer.chat_template = CHATML
    found = encode(tokenizer, TWO_TURNS, 100)
    assert said(found) == wanted == [(0, 5), (0, 6), (0, END), (1, 8), (1, END)]
    assert found.ids.tolist()[-2:] == [8, END]  # nothing after the last response
    assert found.ids.tolist()[4] == 40
    assert found.ended


def test_end_of_turn_outside_the_markers_belongs_to_the_response(tokenizer):
    wanted = said(encode(tokenizer, TWO_TURNS, 100))
    template = tokenizer.chat_template
    tokenizer.chat_template = template.replace(
        "m.content + ' <end>' }}{% endgeneration %}",
        "m.content }}{% endgeneration %}{{ ' <end>' }}",
    )
    assert tokenizer.chat_template != template
    assert said(encode(tokenizer, TWO_TURNS, 100)) == wanted


def test_a_template_that_rewrites_history_is_refused(tokenizer):
    tokenizer.chat_template = "{{ messages | length }} " + CHATML
    with pytest.raises(RowError, match="rewrites earlier turns"):
        encode(tokenizer, TWO_TURNS, 100)


THINKS = (
    "{% set seen = namespace(query=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set seen.query = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<' + m.role + '> ' }}{% if m.role == 'assistant' %}"
    "{% set parts = m.content.split('w21') %}{% if loop.index0 > seen.query %}"
    "{{ 'w20' + (parts[0].replace('w20', '') if parts | length > 1 else '') + ' w21 ' }}{% endif %}"
    "{{ parts[-1] }}{% else %}{{ m.content }}{% endif %}{{ ' <end> w40 ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)
"""As Qwen3's: thoughts (w20 … w21) of answers to earlier queries are left out, and an answer to the
last query has a place for them, though it be empty."""


def test_a_template_that_leaves_out_earlier_thoughts(tokenizer):
    tokenizer.chat_template = THINKS
    thought = [*TWO_TURNS[:1], {"role": "assistant", "content": "w20 w9 w21 w5 w6"}, *TWO_TURNS[2:]]
    for messages in (TWO_TURNS, thought):
        found = encode(tokenizer, messages, 100)
        assert said(found) == [(0, 5), (0, 6), (0, END), (1, 20), (1, 21), (1, 8), (1, END)]
    found = encode(tokenizer, thought[:2], 100)
    assert said(found) == [(0, i) for i in (20, 9, 21, 5, 6, END)]


def test_what_such_a_template_hides_is_not_guessed(tokenizer):
    """A response before which something else stands in the whole, or with an end inside."""
    tokenizer.chat_template = THINKS
    steps = [
        {"role": "user", "content": "w3"},
        {"role": "assistant", "content": "w20 w9 w21 w5"},
        {"role": "tool", "content": "w4"},
        {"role": "assistant", "content": "w6"},
    ]
    assert {turn for turn, _ in said(encode(tokenizer, steps, 100))} == {0, 1}
    with pytest.raises(RowError, match="rewrites earlier turns") as error:
        encode(tokenizer, [*steps, *TWO_TURNS[:2]], 100)
    assert not isinstance(error.value, TemplateError)
    inside = [*TWO_TURNS[:1], {"role": "assistant", "content": "w5 <end> w6"}, *TWO_TURNS[2:]]
    with pytest.raises(RowError, match="message 1 has an end-of-turn inside"):
        encode(tokenizer, inside, 100)


@pytest.mark.parametrize("marked", [True, False])
def test_an_end_that_is_not_the_tokenizer_s_is_named(tokenizer, marked):
    """As of Llama 3, where eos_token is <|end_of_text|> and responses end with <|eot_id|>."""
    if not marked:
        tokenizer.chat_template = CHATML
    tokenizer.chat_template = tokenizer.chat_template.replace("<end>", "<assistant>")
    with pytest.raises(RowError, match=r"ends a response with '<assistant>'.*eos_token is '<end>'"):
        encode(tokenizer, TWO_TURNS, 100)


def test_markers_that_leave_out_a_response_are_refused(tokenizer):
    whole = "{% if m.role == 'assistant' %}"
    assert whole in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(
        whole, "{% if m.role == 'assistant' and loop.last %}"
    )
    with pytest.raises(TemplateError, match=r"markers enclose 1 of 2 responses; put them around"):
        encode(tokenizer, TWO_TURNS, 100)


def test_a_template_that_asks_without_a_prompt_of_its_own_is_none_the_worse(tokenizer):
    """As Llama 2's: the response follows the user's closing mark, and nothing asks for it."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content + (' <assistant> ' if m.role == 'user' else ' <end> ')"
        " }}{% endfor %}"
    )
    found = encode(tokenizer, TWO_TURNS, 100)
    assert said(found) == [(0, 5), (0, 6), (0, END), (1, 8), (1, END)]


@pytest.mark.parametrize(
    ("length", "last", "ended"),
    [
        (14, END, True),
        (13, 8, False),
        (12, END, True),
        (8, END, True),
        (7, 6, False),
        (6, 5, False),
    ],
)
def test_truncation_keeps_end_of_turn_only_where_the_response_ends(
    tokenizer,
    length,
    last,
    ended,
):
    found = encode(tokenizer, TWO_TURNS, length)
    assert len(found) <= length
    assert int(found.ids[-1]) == last
    assert bool(found.response[-1])
    assert found.ended is ended


def test_a_prompt_that_leaves_no_room(tokenizer):
    with pytest.raises(RowError, match=r"prompt has 5 tokens.*data.max_length 5: raise it"):
        encode(tokenizer, TWO_TURNS, 5)


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "not a list"),
        ("hello", "not a list"),
        ([{"role": "user", "content": "w3"}], "no response"),
        ([*TWO_TURNS[:1], {"role": "assistant", "content": "  "}], "message 1: the response is"),
        ([{"role": "user"}], "message 0 needs a 'role' and a 'content'"),
        ([{"role": "user", "content": 3}], "message 0: its content is not text"),
        ([{"role": "assistant", "content": "w3"}], "put the prompt before it"),
    ],
)
def test_rows_that_cannot_be_trained_on(tokenizer, messages, match):
    with pytest.raises(RowError, match=match):
        encode(tokenizer, messages, 100)


def test_the_toy_world():
    from mars.embedded import tokenizer

    toy = tokenizer.build_tokenizer()
    data = Data(stage1_examples=40, stage2_examples=20)
    both = load_examples(data, toy, [1, 2], seed=1)
    second = load_examples(data, toy, [2], seed=1)
    assert [e.ids.tolist() for e in both[40:]] == [e.ids.tolist() for e in second]
    assert len(both) == 60
    assert all(e.ended and int(e.ids[-1]) == toy.eos_token_id for e in both)
    for example in both:  # a response is what follows the generation prompt, and nothing else
        text = toy.decode(example.ids[example.response])
        assert text.endswith("<|im_end|>")
        assert "<|im_start|>" not in text
    other = load_examples(data, toy, [2], seed=2)
    assert [e.ids.tolist() for e in other] != [e.ids.tolist() for e in second]


PINNED = {
    1: "b7ed0fd9f8b98f9d11930a7cb6c6a488b6ee62695cbb79e592c3b35953753316",
    2: "12e204be370a62cd2b9a9039064d73ac26dc3b8e58b768376097beecc8b4ef07",
}
"""SHA-256 of the embedded study's first 200 examples of each stage, as it was first published."""


@pytest.mark.parametrize("stage", [1, 2])
def test_the_examples_of_the_embedded_study_stay_what_they_are(stage):
    from mars.embedded import tokenizer

    data = Data(stage1_examples=15_000, stage2_examples=200, max_length=128)
    if stage == 1:
        data = data.model_copy(update={"stage1_examples": 200})
    digest = hashlib.sha256()
    for e in load_examples(data, tokenizer.build_tokenizer(), [stage], seed=0):
        digest.update(json.dumps([e.ids.tolist(), e.turn.tolist(), e.ended]).encode())
    assert digest.hexdigest() == PINNED[stage]
