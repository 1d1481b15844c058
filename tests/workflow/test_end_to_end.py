"""The miniature study from its configuration to its report, killed once on the way."""

from __future__ import annotations

import csv
import json
import re
import signal
import time

import psutil
import pytest

from .conftest import ROOT, copy_to

RUN = ("snakemake", "--cores", "8", "--configfile", "tests/mini.yaml", "--", "all")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def records(results):
    """Every record of a document: what was decoded, and in how many seconds."""
    found = {}
    for path in sorted(results.rglob("evaluation/**/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                made = json.loads(line)
            except ValueError:
                continue  # the line that the kill cut
            key = (str(path.relative_to(results)), made["task"], made["doc_id"])
            found[key] = (made["output"], made["seconds"])
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study whose first Snakemake was killed, and the records of before the kill."""
    base = ROOT / "mars/embedded/checkpoints/toy-s/model.safetensors"
    assert base.is_file(), "the base checkpoint is missing: make it with `mars pretrain toy-s`"
    made = copy_to(tmp_path_factory.mktemp("study"))
    results = made.folder / "results" / "mini"

    running = made.start(*RUN)
    until = time.monotonic() + 600
    while not records(results) and running.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    assert running.poll() is None, made.said.read_text(encoding="utf-8")[-8000:]
    family = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGKILL)
    running.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, "jobs outlived the Snakemake that started them"
    before = records(results)

    assert made.run("mars", "unlock").returncode == 0
    done = made.run(*RUN)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return made, before


def test_what_was_decoded_before_the_kill_is_not_decoded_again(study):
    made, before = study
    after = records(made.folder / "results" / "mini")
    assert before
    assert {key: after[key] for key in before} == before


def test_every_run_has_its_files(study):
    results = study[0].folder / "results" / "mini" / "seed0"
    for variant in ("ar_sft", "block_diffusion_b4", "mars_no_sft_b4", "mars_b4"):
        run = results / "toy-s" / variant
        assert (run / "model" / "model.safetensors").is_file()
        assert not (run / "trainer").exists()
        summary = json.loads((run / "training.json").read_text(encoding="utf-8"))
        assert summary["examples"] == 48
    for name in (
        *("throughput.csv", "throughput.costs.json", "arrivals.csv"),
        *("training_cost.csv", "training_cost.environment.json"),
    ):
        assert (results / name).is_file()


def test_every_decoding_setting_is_a_row(study):
    from mars.config import load_study

    plan = load_study(study[0].folder / "tests" / "mini.yaml")
    for scale, variant in plan.runs():
        path = study[0].folder / f"results/mini/seed0/{scale}/{variant}/evaluation.csv"
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        expected = sum(len(plan.decodings(variant, name)) for name in plan.evaluation.benchmarks)
        assert len(rows) == expected
        assert {row["variant"] for row in rows} == {variant}


def test_the_report_needs_no_other_file(study):
    page = (study[0].folder / "reports/mini/index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert 'src="http' not in page
    assert re.findall(r"<link[^>]*>", page) == ['<link rel="icon" href="data:,">']  # holds nothing


def test_every_figure_is_drawn_and_every_table_written(study):
    from mars.analysis.figures import FIGURES
    from mars.analysis.parts import COMPARED, FORMS
    from mars.analysis.tables import TABLES

    folder = study[0].folder
    drawn = list((folder / "figures/mini").glob("*.png"))
    assert {path.stem for path in drawn} == set(FIGURES)
    assert all(path.stat().st_size > 5000 for path in drawn)
    written = [path.stem for path in (folder / "results/mini/tables").glob("*.md")]
    assert {name for name in written if "." not in name} == set(TABLES)
    assert {name for name in written if "." in name} == {
        f"{t}.{f}" for t in COMPARED for f in FORMS
    }


def test_a_second_run_does_nothing(study):
    assert study[0].jobs("--configfile", "tests/mini.yaml") == set()


OWN = """
plugins: [examples/random_block.py]
variant: {objective: random_block, parent: ar_sft, stages: [2], block_size: 4}
baselines: [ar_sft, mars_b4]
"""


def test_a_variant_of_ones_own_is_made_and_compared(study):
    made, _ = study
    (made.folder / "own.yaml").write_text(OWN, encoding="utf-8")
    words = ("--configfile", "tests/mini.yaml", "--config", "variant=own.yaml")
    done = made.run("snakemake", "--cores", "8", *words, "--", "compare")
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    run = made.folder / "results/mini/seed0/toy-s/own"
    recipe = json.loads((run / "model/mars.json").read_text(encoding="utf-8"))["recipe"]
    assert recipe["settings"]["objective"] == "random_block"
    assert recipe["code"]
    page = (made.folder / "reports/mini/compare-own.html").read_text(encoding="utf-8")
    for told in ("against mars_b4", "data:image/png;base64,", "class RandomBlock(Mars):"):
        assert told in page
    assert made.jobs("--configfile", "tests/mini.yaml") == set()


def test_a_plugin_that_is_broken_ends_it_before_any_job(study):
    made, _ = study
    code = (made.folder / "examples/random_block.py").read_text(encoding="utf-8")
    broken = code.replace("size = int(", "size = 0 * int(")
    assert broken != code
    (made.folder / "broken.py").write_text(broken, encoding="utf-8")
    text = OWN.replace("examples/random_block.py", "broken.py")
    (made.folder / "broken.yaml").write_text(text, encoding="utf-8")
    words = ("--configfile", "tests/mini.yaml", "--config", "variant=broken.yaml")
    done = made.run("snakemake", "--cores", "8", *words, "--", "compare")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert 'File "broken.py", line ' in said or f'File "{made.folder}/broken.py", line ' in said
    assert "broken.yaml: variants.broken.objective: 'random_block': RandomBlock fails" in said
    assert "rule train" not in said
    assert not (made.folder / "results/mini/seed0/toy-s/broken").exists()
