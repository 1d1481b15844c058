"""Fixtures of the data tests; none of them may reach the network or the user's own cache."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_training import build_tokenizer

from mars.config import Data


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path_factory):
    """A cache of its own, and sockets that refuse."""
    import datasets

    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)

    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        assert self.family == socket.AF_UNIX, f"the network was asked for: {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture
def tokenizer():
    return build_tokenizer()


def row(i: int) -> dict:
    """A conversation whose one word of response is w(10 + i)."""
    return {
        "messages": [
            {"role": "user", "content": "w3"},
            {"role": "assistant", "content": f"w{10 + i}"},
        ]
    }


@pytest.fixture
def write(tmp_path) -> Callable[..., Data]:
    """Write rows (text: a line as it is) to a JSONL file, and return settings that name it."""

    def write(rows, **settings) -> Data:
        file = tmp_path / "d.jsonl"
        lines = (r if isinstance(r, str) else json.dumps(r) for r in rows)
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        defaults = {"stage1_examples": 2, "stage2_examples": 3, "max_length": 50}
        return Data(source=str(file), **{**defaults, **settings})

    return write


def words(examples) -> list[int]:
    """The numbers i of ``row(i)``."""
    return [int(example.ids[4]) - 10 for example in examples]


ROOT = Path(__file__).resolve().parents[2]
