"""A study of released checkpoints, from its check to its scores, on tiny ones laid out so."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mars.config import Study, parse_study
from mars.evaluation.check import check_given
from mars.evaluation.run import evaluate_variant
from mars.models import load_tokenizer


@pytest.fixture
def released(checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint under a type and code of its own, with its own mask token."""
    folder = tmp_path / "models" / "authors" / "tiny-blk4"
    shutil.copytree(checkpoint, folder)
    (folder / "mars.json").unlink()
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    told |= {"model_type": "a2d-qwen2", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "modeling.py").write_text("raise SystemExit('a checkpoint\\'s code was run')\n")
    return folder


@pytest.fixture
def of_released(study: Study, released: Path, tmp_path: Path) -> Study:
    raw: dict[str, Any] = study.model_dump(mode="json")
    names = ["ar_sft", "mars_b4", "block_diffusion_b4"]
    raw["scales"] = {
        "toy-s": {"base": "embedded:toy-s", "released": dict.fromkeys(names, "authors/tiny-blk4")}
    }
    raw["variants"] = {
        name: made | {"scales": None} for name, made in raw["variants"].items() if name in names
    } | {"base": {}}
    made = raw["evaluation"]
    made["benchmarks"] = {"toy_gsm8k": made["benchmarks"]["toy_gsm8k"]}
    made |= {"panels": [], "limit": 2, "max_new_tokens": 6, "thresholds": [1.0, 0.5]}
    raw |= {"checkpoints": "released", "throughput": None, "data_root": str(tmp_path)}
    return parse_study(raw)


def test_released_checkpoints_are_evaluated_from_where_they_lie(of_released, released, tmp_path):
    assert len(check_given(of_released, "study.yaml")) == 3
    before = sorted((f.name, f.read_bytes()) for f in released.iterdir())
    rows = {}
    for variant in ("ar_sft", "mars_b4", "block_diffusion_b4"):
        ref = of_released.given_checkpoint("toy-s", variant)
        assert ref == str(released)
        out = tmp_path / "seed0" / "toy-s" / variant
        evaluate_variant(of_released, 0, "toy-s", variant, ref, out)
        rows[variant] = list(csv.DictReader((out / "evaluation.csv").open()))
    assert [(row["decoder"], row["tau"]) for made in rows.values() for row in made] == [
        ("ar", "1.0"), ("mars", "1.0"), ("mars", "0.5"), ("block_diffusion", "1.0"),
    ]  # fmt: skip
    assert len({row["checkpoint"] for made in rows.values() for row in made}) == 1
    setup = json.loads(
        (tmp_path / "seed0/toy-s/mars_b4/evaluation/toy_gsm8k/setup.json").read_text()
    )
    assert (setup["device"], setup["dtype"]) == ("cpu", "float32")
    assert setup["attention"].startswith("SDPA over rows of the cache")
    assert setup["mask_token_source"] == "token <|mask|>"
    assert sorted((f.name, f.read_bytes()) for f in released.iterdir()) == before
