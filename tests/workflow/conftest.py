"""A copy of the checkout in a temporary folder, and Snakemake run in it as a user would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "config", "mars", "profiles", "workflow", "examples")
PARTS += ("tests/mini.yaml", "pyproject.toml")

STAND_IN = '''
"""Stands in for the commands: makes the files that each promises, and does none of the work."""
import os, sys, time
from pathlib import Path
from mars import cli, jobs

command, words = sys.argv[1], sys.argv[2:]
if command in ("config", "unlock"):
    sys.exit(cli.main())
jobs.end_with_workflow(poll_seconds=0.1)
given = dict(zip(words, words[1:]))
out = Path(given["--out"])
FORMS = ("", ".ours", ".paper", ".difference")
made = {
    "train": ["model/model.safetensors", "training.csv", "training.json"],
    "evaluate": ["evaluation.csv"],
    "tidy": ["records.parquet", "generations.parquet"],
    "table": [f"{words[0]}{form}.{kind}" for form in FORMS for kind in ("csv", "md", "tex")],
}
if os.environ.get("STAND_IN_SLEEPS") == command:
    Path(f"{command}.started").write_text(str(os.getpid()))
    time.sleep(60)
names = made.get(command)
paths = [out / name for name in names] if names else [out]
if command == "throughput":
    endings = (".costs.json", ".profile.csv", ".environment.json")
    paths += [out.with_suffix(ending) for ending in endings]
if command in ("arrivals", "training-cost"):
    paths += [out.with_suffix(".environment.json")]
if command == "figure":
    paths = [Path(f"{out}.png"), Path(f"{out}.pdf")]
for path in paths:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join(sys.argv[1:]))
'''


class Checkout:
    """A folder with the project in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = folder / "said.txt"  # what the started command printed

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=1700,
            check=False,
        )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.said.open("wb") as file:
            return subprocess.Popen(
                self.command(*words),
                cwd=self.folder,
                env={**os.environ, **environment},
                stdout=file,
                stderr=file,
            )

    def jobs(self, *words: str, target: str = "all", **environment: str) -> set[str]:
        """The jobs that a dry run lists, each as its rule and its first output."""
        words = ("snakemake", "--dry-run", "--cores", "8", *words, "--", target)
        done = self.run(*words, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        listed = []
        for line in (done.stdout + done.stderr).splitlines():
            if rule := re.match(r" *(?:local)?rule (\w+):$", line):
                listed.append(rule[1])
            elif output := re.match(r" +output: ([^,]+)", line):
                listed[-1] += f" {output[1]}"
        assert len(set(listed)) == len(listed)
        return set(listed) - {"all"}

    def append(self, path: str, text: str = "\n# changed\n") -> None:
        with (self.folder / path).open("a", encoding="utf-8") as file:
            file.write(text)


def copy_to(folder: Path) -> Checkout:
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "*.pyc", "tmp*")
            shutil.copytree(source, target, ignore=skipped, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)
    return Checkout(folder)


@pytest.fixture(scope="session")
def make_checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Checkout]:
    """Copies of the project whose commands only make files, and whose bases are empty files."""

    def make() -> Checkout:
        made = copy_to(tmp_path_factory.mktemp("checkout"))
        (made.folder / "mars" / "__main__.py").write_text(STAND_IN, encoding="utf-8")
        for name in ("toy-s", "toy-m"):
            base = made.folder / "mars" / "embedded" / "checkpoints" / name
            shutil.rmtree(base, ignore_errors=True)
            base.mkdir(parents=True)
            (base / "model.safetensors").touch()
        return made

    return make


@pytest.fixture(scope="session")
def untouched(make_checkout: Callable[[], Checkout]) -> Checkout:
    """One copy that tests only look at."""
    return make_checkout()
