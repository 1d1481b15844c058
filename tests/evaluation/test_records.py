"""Records survive kills, torn lines and full disks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mars.evaluation import records
from mars.evaluation.records import (
    Record,
    RecordError,
    RecordStore,
    fingerprint,
    read_records,
    write_atomically,
)


def record(key: str, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "fingerprint": key,
        "benchmark": "toy",
        "task": "toy",
        "doc_id": 0,
        "repeat": 0,
        "prompt_hash": "p",
        "output": "na\u00efve \u2028 \n text",
        "tokens": 3,
        "forwards": 2,
        "accepted": [2, 1],
        "finish": "end_of_turn",
        "truncated": False,
        "score": None,
        "seconds": 0.25,
        "confidence": [1.0, 0.5, 0.25],
    }
    return Record(**values | changes)


def test_every_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    store = RecordStore(path)
    store.add([record("a"), record("b")])
    store.add([record("c")])
    lines = path.read_text(encoding="utf-8").splitlines(keepends=False)
    assert [json.loads(line)["fingerprint"] for line in path.read_bytes().splitlines()] == list(
        "abc"
    )
    assert lines
    assert read_records(path) == [record("a"), record("b"), record("c")]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    RecordStore(path).add([record("a"), record("b")])
    whole = path.read_bytes()
    for cut in range(len(whole) // 2 + 1, len(whole)):
        path.write_bytes(whole[:cut])
        store = RecordStore(path)
        assert store.get("a") == record("a")
        assert store.get("b") is None
        store.add([record("b")])
        assert path.read_bytes() == whole


def test_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"fingerprint": "x"}\n[]\n\nnot json\n' + record("a").line())
    assert read_records(path) == [record("a")]


def test_what_only_closed_benchmarks_have(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = [record("a"), record("b", output="", answers={"strict": "(B)"}, output_hash="0f")]
    RecordStore(path).add(made)
    assert read_records(path) == made
    first, second = (json.loads(line) for line in path.read_bytes().splitlines())
    assert "answers" not in first
    assert (second["answers"], second["output_hash"]) == ({"strict": "(B)"}, "0f")
    assert [each.said for each in made] == [made[0].output, '{"strict": "(B)"}']


def test_memory_only() -> None:
    store = RecordStore()
    store.add([record("a")])
    assert store.get("a") == record("a")
    store.replace([record("b")])
    assert store.get("a") is None


def test_replace_keeps_the_old_file_until_the_new_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.jsonl"
    store = RecordStore(path)
    store.add([record("a"), record("b")])
    before = path.read_bytes()
    for changed in ([record("b", score=1.0)], [record("a"), record("b", score=1.0)]):
        with monkeypatch.context() as patch:
            patch.setattr(records.os, "fsync", _full)
            with pytest.raises(RecordError, match="No space left"):
                store.replace(changed)
        assert path.read_bytes() == before
        assert not list(tmp_path.glob(".*"))
    store.replace([record("b", score=1.0)])
    assert RecordStore(path).get("a") == record("a")


def test_what_is_replaced_is_found_again(tmp_path: Path) -> None:
    path, beside = tmp_path / "records.jsonl", tmp_path / "records.earlier.jsonl"
    store = RecordStore(path)
    store.add([record("a"), record("b", output="x" * 300)])
    store.replace([record("b", score=1.0)])
    assert read_records(path) == [record("b", score=1.0)]
    assert read_records(beside) == [record("a")]
    store.add([record("c")])
    store.replace([record("a", score=0.5)])
    assert read_records(beside) == [record("a"), record("b", score=1.0), record("c")]
    for made in (store, RecordStore(path)):
        assert list(made) == [record("a", score=0.5)]
        assert made.get("c") == record("c")
        assert "c" in made
        assert made.get("d") is None
        assert "d" not in made
    size = beside.stat().st_size
    store.replace([record("c")])  # what is beside already is not written there again
    assert beside.stat().st_size == size
    beside.write_bytes(beside.read_bytes()[:-9])
    assert RecordStore(path).get("b") == record("b", score=1.0)
    store = RecordStore(path)
    store.replace([])
    assert [each.fingerprint for each in read_records(beside)] == ["a", "b", "c"]


def test_what_is_no_record_beside_is_passed_over(tmp_path: Path) -> None:
    beside = tmp_path / "records.earlier.jsonl"
    foreign = ["{}", "[]", "not json", '{"x": 1}', '{"fingerprint": 3, "benchmark": "x"}']
    beside.write_text("".join(f"{line}\n" for line in foreign) + record("a").line())
    store = RecordStore(tmp_path / "records.jsonl")
    assert store.get("a") == record("a")
    assert store.get("x") is None
    store.add([record("b")])
    store.replace([])
    assert RecordStore(tmp_path / "records.jsonl").get("b") == record("b")


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.jsonl"
    store = RecordStore(path)
    store.add([record("a")])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", _full)
        with pytest.raises(RecordError, match=r"records\.jsonl.*No space left") as caught:
            store.add([record("b")])
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert store.get("b") is None
    store.add([record("b")])
    assert read_records(path) == [record("a"), record("b")]


def test_write_atomically_makes_its_folder(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.csv", "x\n")
    assert (tmp_path / "a" / "b.csv").read_text() == "x\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "b.csv", "x\n")


def test_fingerprints() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    with pytest.raises(TypeError):
        fingerprint({"a": object()})
