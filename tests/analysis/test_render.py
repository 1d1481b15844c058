"""Files are written whole, and an error names the file where the system does not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mars import cli
from mars.analysis import render


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
