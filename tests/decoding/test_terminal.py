"""`mars generate`: prompts from words, a file or the keyboard, answers as they come."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import pytest

import mars
from mars.cli import main
from mars.decoding.contract import DecodingError
from mars.decoding.generate.run import Run
from mars.decoding.generate.terminal import read_prompts

BASE = "embedded:toy-s"
SETTINGS = ("--block-size", "4", "--max-new-tokens", "12", "--tau", "0.5", "--dtype", "float64")
OPTIONS = {"block_size": 4, "max_new_tokens": 12, "tau": 0.5, "dtype": "float64"}


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_prompts_come_from(tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo é\n", encoding="utf-8")
    assert read_prompts(["zero"], str(file), Keyboard()) == ["zero", "one", "two é"]
    assert read_prompts([], "-", io.StringIO("one\n\n two\n")) == ["one", " two"]
    assert capsys.readouterr().err == ""
    assert read_prompts([], None, Keyboard("typed\nmore\n")) == ["typed"]
    assert capsys.readouterr() == ("", "prompt: ")
    for keyboard in (io.StringIO("piped"), Keyboard("")):
        with pytest.raises(DecodingError, match="no prompt"):
            read_prompts([], None, keyboard)
    with pytest.raises(DecodingError, match=r"--prompts .*none\.txt: cannot be read"):
        read_prompts([], str(tmp_path / "none.txt"), Keyboard())


@pytest.fixture
def flushed(monkeypatch):
    """What each print showed at once."""
    shown: list[str] = []
    real = print

    def spy(*words, **rest):
        if rest.get("flush"):
            shown.append(*words)
        real(*words, **rest)

    monkeypatch.setattr("builtins.print", spy)
    return shown


def test_each_prompt_may_have_its_threshold(capsys):
    words = ["generate", BASE, "how many ?", "which one ?", *SETTINGS[:4], *SETTINGS[6:], "--json"]
    assert main([*words, "--tau", "1", "--tau", "0.2"]) == 0
    one, other = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert one["forwards"] == one["tokens"]
    assert other["forwards"] < other["tokens"]
    assert main([*words, "--tau", "1", "--tau", "0.2", "--tau", "0.5"]) == 2
    assert "tau has 3 values for 2 prompts: give one, or one a prompt" in capsys.readouterr().err


def test_a_single_answer_is_shown_as_it_comes(capsys, flushed):
    assert main(["generate", BASE, "hi", *SETTINGS]) == 0
    said = capsys.readouterr()
    answer = mars.generate(BASE, "hi", **OPTIONS)
    assert said.out == answer.text + "\n" == "".join(flushed) + "\n"
    assert len(flushed) > 2
    assert said.err.splitlines()[-1].startswith(
        f"{answer.tokens} tokens, {answer.forwards} forwards, "
    )
    assert f"{answer.tokens_per_forward:.2f} tokens per forward" in said.err


def test_or_at_once(capsys, flushed):
    assert main(["generate", BASE, "hi", *SETTINGS, "--no-stream"]) == 0
    assert flushed == [mars.generate(BASE, "hi", **OPTIONS).text]


def test_several_answers_come_in_the_order_of_their_prompts(capsys):
    prompts = ["write f ( x )", "hi", "é"]
    answers = mars.generate(BASE, prompts, **OPTIONS)
    assert main(["generate", BASE, *prompts, *SETTINGS, "--slots", "2"]) == 0
    said = capsys.readouterr()
    assert said.out == "".join(f"{answer.text}\n\n" for answer in answers)
    assert said.err.splitlines()[-1].startswith(
        f"3 answers, {sum(a.tokens for a in answers)} tokens, "
    )


def test_json_is_an_object_a_line(capsys):
    prompts = ["write f ( x )", "hi"]
    assert main(["generate", BASE, *prompts, *SETTINGS, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    answers = mars.generate(BASE, prompts, **OPTIONS)
    assert [line["text"] for line in lines] == [answer.text for answer in answers]
    assert {"ids", "tokens", "forwards", "tokens_per_forward", "finish", "seconds"} < set(lines[0])


@pytest.mark.parametrize("prompts", [["hi"], ["write f ( x )", "hi"]])
def test_an_interrupt_keeps_what_came(capsys, monkeypatch, prompts):
    pieces = Run.pieces
    shown = []

    def interrupted(run, as_it_comes):
        for piece in pieces(run, as_it_comes):
            shown.append(piece)
            yield piece
            if len(shown) == (2 if as_it_comes else 1):
                raise KeyboardInterrupt

    monkeypatch.setattr(Run, "pieces", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["generate", BASE, *prompts, *SETTINGS, "--slots", "1"])
    assert end.value.code == 130
    said = capsys.readouterr()
    assert said.out.rstrip("\n") == "".join(piece.text for piece in shown)
    assert said.out.endswith("\n")
    assert "interrupted after" in said.err
    assert "Traceback" not in said.err


def test_a_reader_that_leaves_is_no_error():
    """As `mars generate … | head -1` does."""
    words = ["generate", BASE, *["write f ( x )"] * 9, *SETTINGS, "--json"]
    made = subprocess.Popen(
        [sys.executable, "-m", "mars", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert made.stdout is not None
    made.stdout.close()
    _, said = made.communicate(timeout=120)
    assert made.returncode in (0, -signal.SIGPIPE), said
    assert b"Traceback" not in said
    assert b"Exception" not in said


def test_what_is_wrong_is_one_line(capsys):
    assert main(["generate", BASE, "hi", "--tau", "2"]) == 2
    assert main(["generate", "nowhere", "hi"]) == 2
    assert main(["generate", BASE, "--prompts", "no-such-file"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["mars"] * 3
