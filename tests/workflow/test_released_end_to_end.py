"""A study of released checkpoints from its check to its report, on small ones laid out alike.

The workflow lists the jobs; their commands are run here, in one process, which spares the minute
that as many starts of Python would take.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from mars import cli
from mars.config import dump_study, load_study
from mars.models import load_tokenizer

from .conftest import ROOT, Checkout, copy_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TABLES = ("table2", "table3", "table4", "table5")
NAMES = ("ar_sft", "block_diffusion_b4", "mars_no_sft_b4", "mars_b4")


def release(folder: Path) -> None:
    """An embedded base model under a type and code of its own, with its own mask token."""
    shutil.copytree(ROOT / "mars/embedded/checkpoints/toy-s", folder)
    (folder / "mars.json").unlink()
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    told |= {"model_type": "a2d-qwen2", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "modeling.py").write_text("raise SystemExit('a checkpoint\\'s code was run')\n")


def settings() -> dict[str, object]:
    """The miniature study with released checkpoints: fewer documents, the grid alone."""
    raw = yaml.safe_load((ROOT / "tests/mini.yaml").read_text(encoding="utf-8"))
    scale = {"base": "embedded:toy-s", "paper": "7B"}
    released = {name: f"authors/tiny-{name}" for name in NAMES}
    grid = {"prompts": 2, "thresholds": [0.95]}
    off = dict.fromkeys(("replay", "continuous", "trace"))
    return raw | {
        "checkpoints": "released",
        "data_root": "data",
        "scales": {"toy-s": scale | {"released": released}},
        "evaluation": raw["evaluation"] | {"limit": 1, "max_new_tokens": 8},
        "throughput": raw["throughput"] | grid | off | {"max_new_tokens": 8},
    }


def commands(made: Checkout, *targets: str) -> list[list[str]]:
    """What the workflow would run, in its order."""
    words = ("-n", "-p", "--cores", "1", "--configfile", "released.yaml", "--", *targets)
    done = made.run("snakemake", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"exec python -m mars (.+) &> ", done.stdout + done.stderr)
    return [shlex.split(line) for line in found]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = copy_to(tmp_path_factory.mktemp("released"))
    for name in NAMES:
        release(made.folder / f"data/models/authors/tiny-{name}")
    (made.folder / "released.yaml").write_text(yaml.safe_dump(settings()), encoding="utf-8")
    tables = [f"results/mini/tables/{name}.csv" for name in TABLES]
    listed = commands(made, *tables, "reports/mini/index.html")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(made.folder)
        config = Path("results/mini/config.yaml")
        config.parent.mkdir(parents=True)
        config.write_text(dump_study(load_study("released.yaml")), encoding="utf-8")
        assert cli.main(["check", "--config", str(config), "--out", "checked.txt"]) == 0
        for command in listed:
            Path(command[command.index("--out") + 1]).parent.mkdir(parents=True, exist_ok=True)
            assert cli.main(command) == 0, command
    assert {command[0] for command in listed} >= {"evaluate", "throughput", "table", "report"}
    assert not {command[0] for command in listed} & {"train", "training-cost", "pretrain"}
    return made.folder


def rows(results: Path, name: str) -> list[dict[str, str]]:
    with (results / f"results/mini/tables/{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", TABLES)
def test_the_paper_s_tables_are_there(results: Path, name: str) -> None:
    assert rows(results, name)
    for form in ("ours", "paper", "difference"):
        assert (results / f"results/mini/tables/{name}.{form}.csv").is_file()


def test_every_released_variant_is_evaluated_and_nothing_is_trained(results: Path) -> None:
    runs = results / "results/mini/seed0/toy-s"
    assert {run.name for run in runs.iterdir()} == {"base", *NAMES}
    assert all((run / "evaluation.csv").is_file() for run in runs.iterdir())
    assert not list(runs.glob("*/model"))


def test_the_grid_is_of_released_checkpoints(results: Path) -> None:
    with (results / "results/mini/seed0/throughput.csv").open(encoding="utf-8") as file:
        measured = list(csv.DictReader(file))
    assert {row["batch_size"] for row in measured} == {"2"}
    assert {"ar", "mars"} <= {row["method"] for row in measured}


def test_the_report_has_them(results: Path) -> None:
    page = (results / "reports/mini/index.html").read_text(encoding="utf-8")
    for name in ("Table 2", "Table 5"):
        assert name in page
