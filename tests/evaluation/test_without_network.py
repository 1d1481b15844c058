"""What `mars fetch` laid out is checked, trained on and evaluated without a network."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from planning.fake_hub import Hub

from mars import cli
from mars.planning import wanted as wanted_module

from .six import PUNKT, SETTINGS

TALK = [
    {"messages": [{"role": "user", "content": f"{n} pots?"}, {"role": "assistant", "content": "A"}]}
    for n in range(16)
]


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def file(
    byte_checkpoint: Path, made_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The study, fetched from a hub that is gone afterwards."""
    archive = (made_root / "gpqa" / "dataset.zip").read_bytes()
    talk = "".join(json.dumps(row) + "\n" for row in TALK).encode()
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study(tmp_path / "data")))
    with Hub() as hub, monkeypatch.context() as patch:
        hub.repositories = {
            "models/owner/tiny": files_of(byte_checkpoint),
            "datasets/owner/talk": {"train.jsonl": talk},
            "datasets/openai/gsm8k": files_of(made_root / "gsm8k"),
            "datasets/google/IFEval": files_of(made_root / "ifeval"),
        }
        hub.files["/dataset.zip"] = archive
        tables = {f"english/{name}": content for name, content in PUNKT.items()}
        index = hub.add_nltk("punkt_tab", tables)
        patch.setattr(wanted_module, "GPQA", f"{hub.address}/dataset.zip")
        patch.setattr(wanted_module, "GPQA_SHA256", hashlib.sha256(archive).hexdigest())
        patch.setattr("mars.planning.fetch.NLTK_INDEX", index)
        patch.setenv("HF_ENDPOINT", hub.address)
        assert cli.main(["fetch", "--config", str(file)]) == 0
    return file


def study(root: Path) -> dict[str, Any]:
    names = ("gsm8k_cot", "gpqa_main_cot_zeroshot", "ifeval")
    return {
        "study": "fetched",
        "data_root": str(root),
        "scales": {"tiny": {"base": "owner/tiny"}},
        "data": {"source": "owner/talk", "stage1_examples": 8, "stage2_examples": 8},
        "training": {"batch_size": 4},
        "variants": {"base": {}, "sft": {"objective": "ar_sft", "parent": "base", "stages": [1]}},
        "evaluation": {
            "benchmarks": {name: SETTINGS[name].model_dump() for name in names},
            "panels": [],
            "sweep": "none",
            "max_new_tokens": 4,
            "limit": 1,
        },
    }


def test_fetched_checked_trained_and_evaluated(
    file: Path, tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    request.getfixturevalue("no_network")  # from here on
    config, run = ["--config", str(file)], tmp_path / "results" / "seed0" / "tiny" / "sft"
    assert cli.main(["check", *config, "--out", str(tmp_path / "checked.txt")]) == 0
    warned = [line for line in capfd.readouterr().err.splitlines() if "warning:" in line]
    assert any("gsm8k_cot: warning: 3 documents, but the benchmark has 1319" in w for w in warned)
    assert all(line.startswith(str(file)) for line in warned)
    words = [*config, "--seed", "0", "--scale", "tiny", "--variant", "sft", "--out", str(run)]
    assert cli.main(["train", *words, "--parent", "owner/tiny"]) == 0
    assert cli.main(["evaluate", *words, "--checkpoint", str(run / "model")]) == 0
    rows = {row["benchmark"]: row for row in csv.DictReader((run / "evaluation.csv").open())}
    assert [row["documents"] for row in rows.values()] == ["1", "1", "1"]
    assert (rows["gsm8k_cot"]["available"], rows["gsm8k_cot"]["expected"]) == ("3", "1319")


def test_what_was_not_fetched_is_one_line_and_no_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_network: list[Any]
) -> None:
    root, file = tmp_path / "data", tmp_path / "study.yaml"
    root.mkdir()
    raw = study(root)
    file.write_text(yaml.safe_dump(raw))
    check = ["check", "--config", str(file), "--out", str(tmp_path / "checked.txt")]
    assert cli.main(check) == 2
    said = capsys.readouterr().err
    assert "scales.tiny.base: owner/tiny: no folder of that name here, and the hub cannot" in said
    assert f"`mars fetch --config {file}` puts a study's models" in said
    released = {"base": "embedded:toy-s", "released": {"sft": "authors/sft"}}
    file.write_text(yaml.safe_dump(raw | {"scales": {"tiny": released}, "checkpoints": "released"}))
    assert cli.main(check) == 2
    said = capsys.readouterr().err
    assert "scales.tiny.released.sft: authors/sft: no folder of that name here" in said
    assert f"`mars fetch --config {file} --set checkpoints=released`" in said
    file.write_text(yaml.safe_dump(raw | {"scales": {"tiny": {"base": "embedded:toy-s"}}}))
    assert cli.main(["data", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert "owner/talk: the Hugging Face Hub cannot be reached" in said
