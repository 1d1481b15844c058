"""The notebooks: clean in git, and they run whatever of a study is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mars.analysis.notebooks import FOLDER, NotebookError, execute
from mars.analysis.tables import build
from mars.config import dump_study, load_study, parse_study

from . import synthetic

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

RUN = """
import json, os, sys
from IPython.terminal.interactiveshell import TerminalInteractiveShell

for results in sys.argv[2:]:
    os.environ["MARS_STUDY"] = results
    for path in sys.argv[1].split(":"):
        shell = TerminalInteractiveShell(simple_prompt=True)
        for cell in json.load(open(path, encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                ran = shell.run_cell("".join(cell["source"]))
                if not ran.success:
                    sys.exit(f"{path} on {results}: {ran.error_in_exec or ran.error_before_exec}")
"""


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_there_are_five():
    assert [path.stem for path in NOTEBOOKS] == [
        *("01_frontier", "02_block_size_and_sft_loss", "03_wall_clock", "04_confidence"),
        "05_compare_variant",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(path):
    book = read(path)
    for cell in book["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
        assert cell["metadata"] == {}
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    assert book["metadata"]["kernelspec"]["name"] == "python3"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_first_cell_says_what_to_run_where_results_are_missing(path):
    first = "".join(read(path)["cells"][0]["source"])
    assert "Results missing?" in first
    assert "make all" in first
    assert "MARS_STUDY" in first


def test_they_run_on_a_finished_study_a_partial_one_and_one_just_begun(tmp_path):
    whole, partial, begun = (tmp_path / name for name in ("whole", "partial", "begun"))
    study = load_study(synthetic.ROOT / "tests" / "mini.yaml")
    synthetic.make_results(whole, study, documents=8)
    shutil.copy(synthetic.ROOT / "tests" / "mini.yaml", whole / "config.yaml")
    shutil.copytree(whole, partial)
    shutil.rmtree(partial / "seed0/toy-s/ar_sft/evaluation")  # its rows are there, no records
    (partial / "seed0/toy-s/mars_no_sft_b4/evaluation.csv").unlink()
    (partial / "seed0/throughput.csv").unlink()
    begun.mkdir()
    shutil.copy(whole / "config.yaml", begun)

    words = [sys.executable, "-c", RUN, ":".join(map(str, NOTEBOOKS))]
    done = subprocess.run(
        [*words, str(whole), str(partial), str(begun)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(synthetic.ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "mars_b4 at τ = 0.95 minus ar_sft at τ = 1" in done.stdout
    assert "No wall-clock grid" in done.stdout


def test_wall_clock_shows_the_numbers_of_the_reports_tables(tmp_path, monkeypatch):
    """Two thresholds, and repeats in which now one AR method is the fastest, now the other."""
    raw = load_study(synthetic.ROOT / "tests" / "mini.yaml").model_dump(mode="json")
    raw["throughput"] |= {"thresholds": [0.95, 0.5], "repeats": 3}
    study = parse_study(raw)
    synthetic.write_throughput(study, tmp_path, 0)
    (tmp_path / "config.yaml").write_text(dump_study(study), encoding="utf-8")
    path = tmp_path / "seed0/throughput.csv"
    runs = pd.read_csv(path)
    rng = np.random.default_rng(0)
    runs["seconds"] *= rng.uniform(0.8, 1.2, len(runs)) * runs["tau"].fillna(1.0)
    runs["tokens_per_s"] = runs["tokens"] / runs["seconds"]
    runs.to_csv(path, index=False)
    monkeypatch.setenv("MARS_STUDY", str(tmp_path))
    made: dict[str, Any] = {}
    for cell in read(FOLDER / "03_wall_clock.ipynb")["cells"]:
        lines = [line for line in cell["source"] if not line.startswith("%")]
        if cell["cell_type"] == "code" and "speedup" not in made:
            exec("".join(lines), made)
    rates = made["by_batch_size"](lambda grid, at: grid.of("tokens_per_s", at))
    tables = [build(name, study, tmp_path) for name in ("table5", "replay")]
    sections = [section for table in tables for section in table.sections]
    titles = ["τ = 0.95", "τ = 0.5", "Replayed acceptance"]
    assert list(made["speedup"].index.unique("acceptance")) == titles
    assert len(made["speedup"]) == sum(len(section.rows) for section in sections)
    for title, section in zip(titles, sections, strict=True):
        for row in section.rows:
            block = row["cache_block"]
            method = row["model"] + (f", B_cache {block}" if block else "")
            at = (title, method), row["batch_size"]
            assert made["speedup"].loc[at] == row["speedup"].value
            assert rates.loc[at] == row["tokens_per_s"].value


def write(path: Path, source: str) -> Path:
    cell = {"cell_type": "code", "id": "a", "source": source, "metadata": {}, "outputs": []}
    book = {"cells": [{**cell, "execution_count": None}], "metadata": {}}
    path.write_text(json.dumps({**book, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return path


def test_the_workflow_runs_a_notebook_and_leaves_it_clean(tmp_path):
    book = write(tmp_path / "a.ipynb", "import os, mars\nprint(os.environ['MARS_STUDY'], 6 * 7)")
    before = book.read_bytes()
    page = execute(book, tmp_path / "results", tmp_path / "out" / "a.html").read_text("utf-8")
    assert f"{tmp_path / 'results'} 42" in page
    assert 'src="http' not in page
    assert book.read_bytes() == before


def test_a_cell_that_fails_is_one_line_and_leaves_no_page(tmp_path):
    book = write(tmp_path / "a.ipynb", "1 / 0")
    with pytest.raises(NotebookError, match=r"a\.ipynb: a cell failed: ZeroDivisionError") as told:
        execute(book, tmp_path, tmp_path / "a.html")
    assert "1 / 0" in told.value.own_traceback
    assert not (tmp_path / "a.html").exists()
    with pytest.raises(NotebookError, match=r"b\.ipynb: no notebook"):
        execute(tmp_path / "b.ipynb", tmp_path, tmp_path / "b.html")


def test_a_mean_over_seeds_is_over_all_of_them(tmp_path, monkeypatch):
    """A run that one seed lacks is no row of the first table, instead of the other seed's alone."""
    raw = load_study(synthetic.ROOT / "tests" / "mini.yaml").model_dump(mode="json")
    study = parse_study(raw | {"seeds": [0, 1]})
    synthetic.make_results(tmp_path, study, documents=6)
    (tmp_path / "config.yaml").write_text(dump_study(study), encoding="utf-8")
    (tmp_path / "seed1/toy-s/mars_b4/evaluation.csv").unlink()
    monkeypatch.setenv("MARS_STUDY", str(tmp_path))
    made: dict[str, Any] = {}
    for cell in read(FOLDER / "01_frontier.ipynb")["cells"]:
        lines = [line for line in cell["source"] if not line.startswith("%")]
        if cell["cell_type"] == "code" and "swept" not in made:
            exec("".join(lines), made)
    shown = set(made["swept"]["variant"])
    assert "mars_no_sft_b4" in shown
    assert "mars_b4" not in shown
