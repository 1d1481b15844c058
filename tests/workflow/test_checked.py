"""What `mars check` warned of is said at every start; it looks anew where a setting changed."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_warnings_are_said_at_every_start(make_checkout):
    made = make_checkout()
    asked = ("snakemake", "--cores", "1", "--configfile", "config/quick.yaml", "--")
    assert made.run(*asked, "results/quick/chance.csv").returncode == 0
    checked = made.folder / "results" / "quick" / "checked.txt"
    checked.write_text(f"{checked.read_text()}\nevaluation.benchmarks.x: warning: 3 documents\n")
    done = made.run(*asked, "results/quick/environment.json")
    assert done.returncode == 0, done.stderr
    assert "config/quick.yaml: evaluation.benchmarks.x: warning: 3 documents" in done.stderr

    changed = ("--config", "training={accelerate: other.yaml}", "--forceall")
    assert made.run(*asked[:-1], *changed, "--", "results/quick/chance.csv").returncode == 0
    assert "3 documents" not in checked.read_text()  # another launcher: all is checked anew
