"""Conversations → ids and exact assistant spans; rows that cannot be trained on."""

import json

import pytest
from tiny_training import END, build_tokenizer

from mars.config import Data
from mars.data import DataError, RowError, encode, load_examples

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


# ------------------------------------------------------------------------------- sources


def write(file, rows):
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return Data(source=str(file), stage1_examples=2, stage2_examples=3, max_length=50)


def row(i):
    return {
        "messages": [
            {"role": "user", "content": "w3"},
            {"role": "assistant", "content": f"w{10 + i}"},
        ]
    }


def test_stages_are_consecutive_rows(tokenizer, tmp_path):
    data = write(tmp_path / "d.jsonl", [row(0), "", *(row(i) for i in range(1, 6))])
    one, two, both = (load_examples(data, tokenizer, s, 0) for s in ([1], [2], [1, 2]))
    assert [int(e.ids[4]) for e in one] == [10, 11]
    assert [int(e.ids[4]) for e in two] == [12, 13, 14]
    assert [int(e.ids[4]) for e in both] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([row(0), "", {"messages": []}], r"d.jsonl, line 3: 'messages' is not a list"),
        ([row(0), "{bad"], r"d.jsonl, line 2: not JSON"),
        ([row(0), {"text": "x"}], r"d.jsonl, line 2: no 'messages'"),
        ([row(0)], r"d.jsonl: stage 1 needs rows 1 to 2 and the file has 1; lower data.stage1_ex"),
    ],
)
def test_faults_of_a_file_name_file_and_line(tokenizer, tmp_path, rows, match):
    data = write(tmp_path / "d.jsonl", rows)
    with pytest.raises(DataError, match=match) as error:
        load_examples(data, tokenizer, [1], 0)
    assert "\n" not in str(error.value)


def test_a_missing_file(tokenizer, tmp_path):
    data = Data(source=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none.jsonl: no such file; set data.source"):
        load_examples(data, tokenizer, [1], 0)


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
