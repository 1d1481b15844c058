"""Files of conversations: stages, forms, and rows that cannot be trained on."""

import json

import pytest

from mars.config import Data
from mars.data import DataError, load_examples
from mars.data.forms import messages_of
from mars.data.prepare import check_rows

from .conftest import row, words

BAD = {
    "no response": {"messages": [{"role": "user", "content": "w3"}]},
    "empty response": {"messages": [row(0)["messages"][0], {"role": "assistant", "content": " "}]},
    "empty prompt": {"messages": [{"role": "user", "content": ""}, row(0)["messages"][1]]},
    "no prompt": {"messages": row(0)["messages"][1:]},
    "malformed messages": {"messages": []},
    "prompt too long": {"prompt": "w3 " * 5000, "response": "w4"},
    "no known form": {"text": "w3"},
    "not JSON": '{"messages": [',
    "end-of-turn in a response": {"prompt": "w3", "response": "w4 <end> w5"},
    "repeated": row(0),
}


def test_stages_are_consecutive_rows(tokenizer, write):
    data = write([row(0), "", *(row(i) for i in range(1, 6))])
    assert words(load_examples(data, tokenizer, [1], 0)) == [0, 1]
    assert words(load_examples(data, tokenizer, [2], 0)) == [2, 3, 4]
    assert words(load_examples(data, tokenizer, [1, 2], 0)) == [0, 1, 2, 3, 4]


def test_examples_are_a_sequence(tokenizer, write):
    found = load_examples(write([row(i) for i in range(5)]), tokenizer, [1, 2], 0)
    assert len(found) == 5
    assert words(found[1:3]) == [1, 2]
    assert words([found[-1]]) == [4]
    second = load_examples(write([row(i) for i in range(5)]), tokenizer, [2], 0)
    assert words(second[i] for i in range(3)) == words(second) == [2, 3, 4]
    assert found.lengths().tolist() == [len(example) for example in found]
    with pytest.raises(IndexError):
        found[5]


# --- bad rows


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_left_out_counted_and_named(tokenizer, write, kind, caplog):
    data = write([row(0), "", BAD[kind], *(row(i) for i in range(1, 5))])
    found = load_examples(data, tokenizer, [1, 2], 0)
    assert words(found) == [0, 1, 2, 3, 4]
    (told,) = found.report.kinds()
    assert (told[0], told[1].count, told[1].first) == (kind, 1, 3)
    assert found.report.rows == 6
    (line,) = caplog.messages  # for the log of the run
    assert line.startswith(f"1 of 6 rows dropped: 1 {kind}, first: {data.source}, line 3: ")


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_an_error_where_that_is_wanted(tokenizer, write, kind):
    data = write([row(0), "", BAD[kind], *(row(i) for i in range(1, 5))], on_bad_rows="error")
    with pytest.raises(DataError, match=r"d.jsonl, line 3: ") as error:
        load_examples(data, tokenizer, [1], 0)
    assert "\n" not in str(error.value)


def test_all_kinds_at_once_and_rows_past_the_last_are_not_read(tokenizer, write):
    rows = [x for pair in zip(BAD.values(), map(row, range(1, 11)), strict=True) for x in pair]
    data = write([row(0), *rows, "{bad"], stage1_examples=6, stage2_examples=5)
    found = load_examples(data, tokenizer, [1, 2], 0)
    assert words(found) == list(range(11))
    assert {kind: told.count for kind, told in found.report.kinds()} == dict.fromkeys(BAD, 1)
    assert [told.first for told in found.report.dropped.values()] == list(range(2, 22, 2))


def test_too_few_good_rows_say_what_became_of_the_others(tokenizer, write):
    data = write([row(0), *BAD.values(), row(1)])
    assert words(load_examples(data, tokenizer, [1], 0)) == [0, 1]
    with pytest.raises(DataError) as error:
        load_examples(data, tokenizer, [2], 0)
    said = str(error.value)
    assert "d.jsonl: stage 2 needs rows 3 to 5 and the file has 2 that can be trained on" in said
    assert "(10 of 12 rows dropped: 1 empty prompt, first: " in said
    assert "d.jsonl, line 2: no response: no message has the role 'assistant'" in said
    assert said.endswith("lower data.stage2_examples")
    assert "\n" not in said


def test_too_few_rows(tokenizer, write):
    with pytest.raises(DataError, match=r"stage 1 needs rows 1 to 2 and the file has 1; lower"):
        load_examples(write([row(0)]), tokenizer, [1], 0)


def test_an_empty_file(tokenizer, write):
    with pytest.raises(DataError, match=r"the file has 0; lower data.stage1_examples"):
        load_examples(write(["", ""]), tokenizer, [1], 0)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b'{"id": 1, "text": "x"}\n' * 9, r"line 1: no known form: its columns are id, text; know"),
        (b"col,umn\n1,2\n", r"line 1: not JSON"),
        (b"[\n1,\n2\n]\n", r"line 1: not JSON"),
        (b"\xff\xfe\x00\n", r"line 1: not UTF-8 text"),
        (b"[" * 100_000 + b"\n", r"line 1: not JSON"),
    ],
)
def test_a_file_of_no_known_form_is_refused_whole(tokenizer, tmp_path, content, match):
    file = tmp_path / "d.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=match) as error:
        load_examples(Data(source=str(file)), tokenizer, [1], 0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_half_a_character_and_a_torn_last_line(tokenizer, tmp_path):
    file = tmp_path / "d.jsonl"
    half = '{"prompt": "w3 \\ud83d", "response": "w4"}'
    file.write_text("\n".join([json.dumps(row(0)), half, json.dumps(row(1)), '{"messages": [{']))
    data = Data(source=str(file), stage1_examples=2, stage2_examples=1)
    assert words(load_examples(data, tokenizer, [1], 0)) == [0, 1]
    with pytest.raises(DataError, match=r"1 malformed messages, .*line 2.*1 not JSON, .*line 4"):
        load_examples(data, tokenizer, [2], 0)


def test_what_the_template_refuses_is_a_bad_row(tokenizer, write):
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + tokenizer.chat_template
    )
    system = {"messages": [{"role": "system", "content": "w5"}, *row(0)["messages"]]}
    found = load_examples(write([row(0), system, row(1)]), tokenizer, [1], 0)
    assert words(found) == [0, 1]
    assert "no system" in found.report.dropped["refused by the template"].message


HEADED = (
    "{% for m in messages %}{{ m.name or '' }}"
    "{% for call in m.tool_calls or [] %}{{ 'w5 ' + call.name }}{% endfor %}"
)


@pytest.mark.parametrize(
    "more",
    [{"tool_calls": 5}, {"tool_calls": [{"name": None}]}, {"tool_calls": [{}]}, {"name": "\ud800"},
     {"role": "\ud800"}],
    ids=repr,
)  # fmt: skip
def test_a_row_that_the_template_trips_over_is_a_bad_row(tokenizer, write, more):
    tokenizer.chat_template = tokenizer.chat_template.replace("{% for m in messages %}", HEADED)
    prompt, response = row(2)["messages"]
    odd = {"messages": [prompt, {**prompt, **more}, response]}
    found = load_examples(write([row(0), odd, row(1)]), tokenizer, [1], 0)
    assert words(found) == [0, 1]
    assert found.report.lost == 1


def test_a_template_with_another_end_is_no_matter_of_rows(tokenizer, write):
    tokenizer.chat_template = tokenizer.chat_template.replace("<end>", "<user>")
    with pytest.raises(DataError, match=r"d.jsonl, line 1: .* ends a response with '<user>'"):
        load_examples(write([row(i) for i in range(5)]), tokenizer, [1], 0)


def test_a_template_at_fault_is_no_matter_of_rows(tokenizer, write):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ' ' + m.content + ' <end> ' }}{% endfor %}"
    )
    with pytest.raises(DataError, match=r"d.jsonl: the chat template writes no generation prompt"):
        load_examples(write([row(i) for i in range(5)]), tokenizer, [1], 0)


# --- forms

ASKED = [{"role": "user", "content": "w3"}, {"role": "assistant", "content": "w4"}]


@pytest.mark.parametrize(
    "told",
    [
        {"messages": ASKED},
        {"messages": [{**message, "name": None} for message in ASKED], "prompt": "other"},
        {"conversations": [{"from": "human", "value": "w3"}, {"from": "gpt", "value": "w4"}]},
        {"conversations": {"from": ["human", "gpt"], "value": ["w3", "w4"]}},
        {"conversations": ASKED},
        {"prompt": "w3", "response": "w4", "id": 7},
        {"prompt": "w3", "completion": "w4", "system": None},
    ],
)
def test_every_form_is_the_same_conversation(told):
    assert messages_of(told) == ASKED


def test_a_system_column_comes_first():
    told = messages_of({"system": "w9", "prompt": "w3", "response": "w4"})
    assert told == [{"role": "system", "content": "w9"}, *ASKED]


def test_forms_may_be_mixed_in_a_file(tokenizer, write):
    others = [
        {"prompt": "w3", "response": "w11"},
        {"conversations": [{"from": "human", "value": "w3"}, {"from": "gpt", "value": "w12"}]},
    ]
    data = write([row(0), *others, {"prompt": 3, "response": "w4"}, row(3), row(4)])
    found = load_examples(data, tokenizer, [1, 2], 0)
    assert words(found) == [0, 1, 2, 3, 4]
    assert found.report.lost == 1


def test_an_unknown_speaker(tokenizer, write):
    odd = {"conversations": [{"from": "martian", "value": "w3"}]}
    data = write([odd, row(0)], on_bad_rows="error")
    with pytest.raises(DataError, match=r"line 1: message 0: from 'martian' is unknown"):
        load_examples(data, tokenizer, [1], 0)


# --- settings, and what `mars check` says


def test_a_missing_file(tokenizer, tmp_path):
    data = Data(source=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none.jsonl: no such file; set data.source"):
        load_examples(data, tokenizer, [1], 0)


@pytest.mark.parametrize("setting", ["config", "split", "revision"])
def test_settings_that_a_source_has_not_are_errors(tokenizer, write, setting):
    with pytest.raises(DataError, match=rf"data.{setting}: .* is a file, which has none"):
        load_examples(write([row(0)], **{setting: "x"}), tokenizer, [1], 0)
    with pytest.raises(ValueError, match=rf"data.{setting}: the embedded source has none"):
        Data(**{setting: "x"})


def test_the_check_of_a_study_says_what_is_dropped(tokenizer, tmp_path):
    from tiny_training import build_study, write_rows

    file = write_rows(tmp_path / "rows.jsonl")
    study = build_study(file)
    (said,) = check_rows(study, {"s": tokenizer}, "my.yaml")
    assert said == f"data.source: 60 rows of {file} train scales.s"
    file.write_text('{"messages": []}\n' + file.read_text())
    _, lost = check_rows(study, {"s": tokenizer}, "my.yaml")
    assert lost.startswith("data.source: 1 of 61 rows dropped: 1 malformed messages, first: ")
    file.write_text('{"messages": []}\n')
    with pytest.raises(DataError, match=r"^my.yaml: data.source: .*rows.jsonl: stage 1 needs"):
        check_rows(study, {"s": tokenizer}, "my.yaml")
