"""`mars data`: counts, histograms, dropped rows, and examples with their blocks marked."""

import json
import re
import sys

import numpy as np
import pytest
import yaml

from mars import cli
from mars.data import load_examples
from mars.data.preview import histogram, preview
from mars.data.terminal import page, rendered
from mars.streams import block_phase

from .conftest import ROOT, row

TWO_TURNS = {"messages": [
    {"role": "user", "content": "w3 w4"}, {"role": "assistant", "content": "w5 w6 w7 w8 w9"},
    {"role": "user", "content": "w7"}, {"role": "assistant", "content": "w8"},
]}  # fmt: skip


def test_what_is_told_is_what_training_reads(tokenizer, write):
    data = write([TWO_TURNS, {"messages": []}, *(row(i) for i in range(4))])
    told, wrong = preview(data, tokenizer, [1, 2], 0, show=1, block_size=2)
    assert wrong is None
    for stage in (1, 2):
        found, read = told["stages"][str(stage)], load_examples(data, tokenizer, [stage], 0)
        assert found["conversations"] == len(read)
        assert found["tokens"] == sum(map(len, read))
        assert found["response_tokens"] == sum(int(e.response.sum()) for e in read)
        assert found["prompt_tokens"] == found["tokens"] - found["response_tokens"]
        assert found["responses"] == sum(int(e.turn.max()) + 1 for e in read)
        assert found["cut"] == sum(not e.ended for e in read) == 0
        assert found["examples"][0]["ids"] == read[0].ids.tolist()
    assert told["rows"] == 6
    ((kind, lost),) = told["dropped"].items()
    assert (kind, lost["count"]) == ("malformed messages", 1)
    assert lost["first"].endswith("d.jsonl, line 2")
    assert json.loads(json.dumps(told))["stages"]["1"]["conversations"] == 2


def test_blocks_have_the_phase_of_training(tokenizer, write):
    data = write([row(0), TWO_TURNS, *(row(i) for i in range(1, 4))])
    told, _ = preview(data, tokenizer, [1], 3, show=2, block_size=4)
    example = told["stages"]["1"]["examples"][1]
    phases = [block_phase(3, 0, 1, turn, 4) for turn in (0, 1)]
    assert example["phases"] == phases
    sizes = [len(text.split()) for turn, text in example["pieces"] if turn == 0]
    first = min(4 - phases[0], 6)
    assert sizes == [first, *[4] * ((6 - first) // 4), *filter(None, [(6 - first) % 4])]
    text = "".join(piece for _, piece in example["pieces"])
    assert text == tokenizer.decode(example["ids"], clean_up_tokenization_spaces=False)


def test_what_is_cut_is_counted_and_marked(tokenizer, write):
    data = write([TWO_TURNS, row(0)], stage2_examples=1, max_length=8)
    data = data.model_copy(update={"stage1_examples": 1})
    told, _ = preview(data, tokenizer, [1, 2], 0, show=1, block_size=4)
    assert [told["stages"][stage]["cut"] for stage in "12"] == [1, 0]
    assert re.search(
        r"stage 1, example 0 \(line 1\): 8 tokens, 3 with loss .*; cut\n", page(told, 0)
    )


def test_marks_without_colour_and_colours_without_marks():
    pieces = [(-1, "a "), (0, "b c"), (0, " d"), (-1, " e "), (1, "f")]
    assert rendered(pieces, colour=False) == "a ⟦b c│ d⟧ e ⟦f⟧"
    coloured = rendered(pieces, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == "a b c d e f"
    colours = re.findall(r"\x1b\[([\d;]+)m(?=\S| d)", coloured)
    assert colours[1] != colours[2]
    assert "⟦" not in coloured


def test_what_would_steer_a_terminal_is_escaped():
    assert rendered([(-1, "a\x1b[2Jb\r\n\tc é")], colour=False) == "a\\x1b[2Jb\\r\n\tc é"


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], []),
        ([0], [(0, 0, 1)]),
        ([3, 9, 9], [(i, i, n) for i, n in enumerate([0, 0, 0, 1, 0, 0, 0, 0, 0, 2])]),
        ([10], [(0, 1, 0), (2, 3, 0), (4, 5, 0), (6, 7, 0), (8, 9, 0), (10, 11, 1)]),
        ([49, 0, 1], [(0, 4, 2), *((5 * i, 5 * i + 4, 0) for i in range(1, 9)), (45, 49, 1)]),
    ],
)
def test_a_histogram_has_round_bars_and_counts_all(values, bars):
    assert histogram(np.array(values, dtype=np.int64)) == bars


# --- the command


@pytest.fixture
def study(tmp_path):
    """A study of JSONL rows in the toy world's words, one of them bad."""
    rows = [{"prompt": f"add {i}", "response": " ".join(["sum"] * (1 + i % 5))} for i in range(12)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in [*rows, {"prompt": "add"}]))
    settings = yaml.safe_load((ROOT / "tests/mini.yaml").read_text(encoding="utf-8"))
    settings["data"] = {"source": str(file), "stage1_examples": 6, "stage2_examples": 6}
    settings["scales"]["toy-s"]["base"] = str(ROOT / "mars/embedded/checkpoints/toy-s")

    def write(**data):
        settings["data"] |= data
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        return ["data", "--config", str(tmp_path / "study.yaml")]

    return write


def test_the_command_prints_a_page(study, capsys):
    assert cli.main(study()) == 0
    said = capsys.readouterr().out
    assert re.search(r"stage 1 +6 +6 ", said)
    assert "12 lines read, none dropped" in said  # the bad one comes after the last needed
    assert "█" in said
    assert "⟦" in said
    assert "in blocks of 4" in said
    assert "\x1b" not in said


def test_the_command_prints_json(study, capsys):
    assert cli.main([*study(), "--json", "--stage", "2", "--show", "3", "--block-size", "8"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["stages"]) == ["2"]
    assert told["block_size"] == 8
    assert [e["row"] for e in told["stages"]["2"]["examples"]] == [7, 8, 9]


def test_the_command_tells_what_there_is_before_it_fails(study, capsys):
    assert cli.main(study(stage2_examples=8)) == 2
    out, err = capsys.readouterr()
    assert re.search(r"13 lines read, 1 dropped:\n +1  no known form; first: .*line 13: ", out)
    assert re.match(r"mars: .*rows.jsonl: stage 2 needs rows 7 to 14 and the file has 12 ", err)
    assert len(err.splitlines()) == 1


def test_colour_on_a_terminal_unless_it_is_not_wanted(study, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.main(study()) == 0
    assert "\x1b[30;46m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(study()) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scale", "toy-x"], "scales: unknown 'toy-x'"),
        (["--seed", "9"], "seeds: 9 is not one of"),
        (["--block-size", "-1"], "block size -1: it must be at least 1"),
    ],
)
def test_a_wrong_word_is_one_line(study, capsys, words, said):
    assert cli.main([*study(), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
