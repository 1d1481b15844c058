"""Encoded examples are kept, found again by content, and made again where they are torn."""

import logging
import os

import numpy as np
import pytest

from mars.data import cache, load_examples, prepare
from mars.data.sources import embedded

from .conftest import row, words


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(cache, "WORTH_SECONDS", 0.0)


@pytest.fixture
def made(monkeypatch):
    """How often rows were encoded."""
    calls, real = [], prepare._encode_chunk

    def counted(*args, **settings):
        calls.append(args)
        return real(*args, **settings)

    monkeypatch.setattr(prepare, "_encode_chunk", counted)
    return calls


def entries():
    return [path for path in cache.folder().glob("*") if path.is_dir()]


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.turn.tolist() == b.turn.tolist()
        assert a.ended == b.ended


ROWS = [row(0), {"messages": []}, *(row(i) for i in range(1, 5))]


def test_the_second_time_nothing_is_encoded(tokenizer, write, made):
    data = write(ROWS)
    first = load_examples(data, tokenizer, [1, 2], 0)
    second = load_examples(data, tokenizer, [1, 2], 0)
    assert len(made) == 1
    same(first, second)
    assert second.report == first.report
    assert second.report.lost == 1
    assert words(load_examples(data, tokenizer, [2], 0)) == [2, 3, 4]
    assert len(made) == 1
    (entry,) = entries()
    assert [path.name for path in cache.folder().iterdir()] == [entry.name]  # nothing else is left


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "no table", "other table"])
def test_a_torn_entry_is_made_again(tokenizer, write, made, damage, caplog):
    data = write(ROWS)
    first = load_examples(data, tokenizer, [1, 2], 0)
    (entry,) = entries()
    file = entry / "ids.npy"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-3])
    elif damage == "flipped":
        content[-2] ^= 1
        file.write_bytes(content)
    elif damage == "missing":
        file.unlink()
    elif damage == "no table":
        (entry / "table.json").write_text('{"report": ')
    else:
        (entry / "table.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        same(first, load_examples(data, tokenizer, [1, 2], 0))
    assert "made again" in caplog.text
    assert len(made) == 2
    same(first, load_examples(data, tokenizer, [1, 2], 0))
    assert len(made) == 2
    assert entries() == [entry]
    assert not (entry / "torn").exists()


def test_whatever_shapes_the_examples_is_in_the_key(tokenizer, write, made, monkeypatch):
    data = write(ROWS)
    load_examples(data, tokenizer, [1, 2], 0)
    shorter = data.model_copy(update={"max_length": 40})
    load_examples(shorter, tokenizer, [1, 2], 0)
    fewer = data.model_copy(update={"stage2_examples": 2})
    load_examples(fewer, tokenizer, [1, 2], 0)
    write([*ROWS, row(7)])  # another content under the same name
    load_examples(data, tokenizer, [1, 2], 0)
    tokenizer.chat_template = tokenizer.chat_template.replace("' <end>'", "' w9 <end>'")
    load_examples(data, tokenizer, [1, 2], 0)
    tokenizer.add_tokens(["w3w3"])
    load_examples(data, tokenizer, [1, 2], 0)
    monkeypatch.setattr(cache, "_CODE", ("encoding.py",))  # as if the code had changed
    load_examples(data, tokenizer, [1, 2], 0)
    assert len(made) == len(entries()) == 7


def test_what_a_tokenizer_was_last_asked_for_is_not_in_the_key(tokenizer):
    before = cache.tokenizer_identity(tokenizer)
    tokenizer(["w3 w4", "w5"], padding="max_length", truncation=True, max_length=3)
    assert cache.tokenizer_identity(tokenizer) == before


def test_seeds_and_spans_of_the_toy_world_are_told_apart():
    made = [embedded(0, 5, 0), embedded(5, 5, 0), embedded(0, 6, 0), embedded(0, 5, 1)]
    assert len({source.identity for source in made}) == 4


def test_the_toy_world_is_the_same_from_the_cache(made):
    from mars.config import Data
    from mars.embedded.tokenizer import build_tokenizer

    data, toy = Data(stage1_examples=30, stage2_examples=20), build_tokenizer()
    first = load_examples(data, toy, [1, 2], 0)
    same(first, load_examples(data, toy, [1, 2], 0))
    assert len(made) == 2  # one a stage
    same(first[30:], load_examples(data, toy, [2], 0))
    assert len(made) == 2


def test_what_is_made_at_once_is_not_kept(tokenizer, write, monkeypatch):
    monkeypatch.setattr(cache, "WORTH_SECONDS", 1.0)
    load_examples(write(ROWS), tokenizer, [1], 0)
    assert not cache.folder().exists()


def test_a_folder_that_cannot_be_written_costs_no_run(tokenizer, write, monkeypatch, caplog):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert words(load_examples(write(ROWS), tokenizer, [1], 0)) == [0, 1]
    assert "No space left on device" in caplog.text
    assert list(cache.folder().iterdir()) == []


def test_of_two_that_write_one_entry_the_first_stays(tokenizer, write):
    data = write(ROWS)
    first = load_examples(data, tokenizer, [1, 2], 0)
    (entry,) = entries()
    before = (entry / "ids.npy").stat().st_ino
    inode = os.stat(entry).st_ino
    real = cache.Path.exists
    try:  # the other process has renamed its own just now
        cache.Path.exists = lambda self: False if self == entry else real(self)
        cache._write(entry, first.table)
    finally:
        cache.Path.exists = real
    assert (os.stat(entry).st_ino, (entry / "ids.npy").stat().st_ino) == (inode, before)
    assert entries() == [entry]


def test_the_standard_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "x"))
    assert cache.folder() == tmp_path / "x" / "mars"
    monkeypatch.delenv("HF_DATASETS_CACHE")
    assert cache.folder().parts[-2:] == ("datasets", "mars")


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_what_one_gives(tokenizer, write, monkeypatch, processes):
    bad = ['{"messages"', {"messages": []}, {"prompt": "w3", "response": " "}, row(2)]
    many = [
        {"prompt": f"w{3 + i % 38} w{3 + i // 38 % 38} w{3 + i // 1444}", "response": "w5"}
        for i in range(3000)
    ]
    rows = [x for i, m in enumerate(many) for x in ([m, bad[i % 4]] if i % 50 == 0 else [m])]
    data = write(rows, stage1_examples=1500, stage2_examples=1400)
    monkeypatch.setattr(cache, "WORTH_SECONDS", 1e9)
    alone = load_examples(data, tokenizer, [1, 2], 0, processes=1)
    together = load_examples(data, tokenizer, [1, 2], 0, processes=processes)
    same(alone, together)
    assert together.report == alone.report
    assert together.report.lost > 20


def test_a_fault_in_a_worker_is_the_fault_of_one(tokenizer, write):
    data = write([row(0), {"messages": []}], on_bad_rows="error")
    with pytest.raises(prepare.DataError, match=r"d.jsonl, line 2: 'messages' is not a list"):
        load_examples(data, tokenizer, [1], 0, processes=2)
    tokenizer.chat_template = "{{ messages | length }} " + "{% for m in messages %}{% endfor %}"
    with pytest.raises(prepare.DataError, match=r"d.jsonl, line 1: .* rewrites earlier turns"):
        load_examples(write([row(0), row(1)]), tokenizer, [1], 0, processes=2)
