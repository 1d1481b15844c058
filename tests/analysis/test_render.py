"""Files are written whole, and an error names the file where the system does not."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import numpy as np
import pytest

from mars import cli
from mars.analysis import render, terminal
from mars.analysis.render import Column, Section, Table, Told
from mars.analysis.statistics import Estimate, Repeated

from . import synthetic


def no_space(self: Path, *_: object, **__: object) -> None:
    """As a full disk fails: some bytes are there, and the error names no file."""
    self.write_bytes(b"hal")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_names_the_file_and_leaves_what_was_there(tmp_path, monkeypatch):
    file = render.write_text(tmp_path / "tables" / "table2.md", "before\n")
    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(OSError, match=r"No space left on device.*table2\.md") as caught:
        render.write_text(file, "after\n")
    assert cli._for_the_user(caught.value) == (
        f"disk full while writing {file}: free some space and run again"
    )
    assert file.read_text(encoding="utf-8") == "before\n"
    assert list(file.parent.iterdir()) == [file]


def write_to_a_full_device(file: Path) -> None:
    with render.whole_file(file) as part:
        part.symlink_to("/dev/full")
        part.write_text("after\n", encoding="utf-8")


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="writes to /dev/full, which only Linux has"
)
def test_a_real_write_that_fails(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device.*table2\.md") as caught:
        write_to_a_full_device(tmp_path / "table2.md")
    assert caught.value.filename == str(tmp_path / "table2.md")
    assert list(tmp_path.iterdir()) == []


def test_a_forbidden_folder_is_one_line():
    error = PermissionError(errno.EACCES, "Permission denied", "results/x")
    assert cli._for_the_user(error) == (
        "results/x: Permission denied: allow it, or choose another folder"
    )


def test_numbers_in_words_are_sorted_by_their_value():
    """A duration, an exponent and a p-value have the number itself beside what is read."""
    columns = [
        Column("name", "Name", text=True),
        Column("spent", "Spent", text=True),
        Column("score", "Score", estimate=True),
        Column("speed", "Speed", spread=True),
        Column("p", "p"),
    ]
    row = {
        "name": "a",
        "spent": Told(3720.0, "1 h 02 min"),
        "score": Estimate(50.0, np.array([40.0, 60.0])),
        "speed": Repeated(1234.5, None),
        "p": 0.0001,
        "probability": True,
    }
    table = Table("t", "T", columns, [Section("T", [row, {"name": "b"}])])
    cells = re.findall(r"<td([^>]*)>([^<]*)</td>", table.html())
    assert cells[:4] == [
        (' data-sort="3720"', "1 h 02 min"),
        (' class="number" data-sort="50"', "50.0"),
        (' class="number" data-sort="1234.5"', "1234.5"),
        (' class="number" data-sort="0.0001"', "&lt; 0.001"),
    ]
    assert cells[4] == ("", "–")
    assert table.csv().splitlines()[1] == "a,3720,50,40.5,59.5,1234.5,,0.0001"
    assert terminal.as_json(table, synthetic.embedded())["sections"][0]["rows"][0]["spent"] == 3720


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (10_000_000, "10,000,000"),
        (999, "999"),
        (4.0, "4"),
        (0.95, "0.95"),
        (np.int64(12_000), "12,000"),
    ],
)
def test_counts_are_read_in_thousands(value, said):
    assert render.show(Column("n", "N", text=True), {"n": value}) == said
