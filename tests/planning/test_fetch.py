"""`mars fetch` against a hub on this machine: layout, verification, interruptions, errors."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import socket
from pathlib import Path

import pandas as pd
import pytest
import yaml

from mars import cli
from mars.config import BENCHMARK_FOLDERS, load_study, parse_study
from mars.planning import wanted as wanted_module
from mars.planning.fetch import Fetcher
from mars.planning.manifest import FetchError
from mars.planning.wanted import Wanted, task_dataset, wanted

from .fake_hub import COMMIT, Hub

ROOT = Path(__file__).resolve().parents[2]
CARD = "---\nconfigs:\n- config_name: main\n  data_files:\n"
CARD += "  - {split: train, path: main/train-*}\n  - {split: test, path: main/test-*}\n---\n"
ROWS = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "2 + 2?", "answer": "#### 4"}]
TALK = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}]


def parquet(rows):
    made = io.BytesIO()
    pd.DataFrame(rows).to_parquet(made)
    return made.getvalue()


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def hub(monkeypatch):
    with Hub() as made:
        made.repositories = {
            "models/owner/model-1M": {
                "config.json": b"{}",
                "model.safetensors": bytes(range(256)) * 40,
                "tokenizer.json": b'{"a": 1}',
                "modeling_own.py": b"import os",
                "pytorch_model.bin": b"pickle",
            },
            "datasets/openai/gsm8k": {
                "README.md": CARD.encode(),
                "main/train-00000.parquet": parquet(ROWS),
                "main/test-00000.parquet": parquet(ROWS[:1]),
                "gsm8k.py": b"import os",
            },
            "datasets/google/IFEval": {"input_data.jsonl": lines([{"key": 1, "prompt": "hi"}])},
            "datasets/owner/talk": {"data/train-0.jsonl": lines(TALK)},
        }
        made.files["/dataset.zip"] = b"encrypted"
        digest = hashlib.sha256(b"encrypted").hexdigest()
        monkeypatch.setattr(wanted_module, "GPQA", f"{made.address}/dataset.zip")
        monkeypatch.setattr(wanted_module, "GPQA_SHA256", digest)
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        index = made.add_nltk("punkt_tab", {"english/collocations.tab": b"a\tb\n"})
        monkeypatch.setattr("mars.planning.fetch.NLTK_INDEX", index)
        yield made


def metric(column):
    return {"column": column, "metric": "exact_match,strict-match"}


RAW = {
    "study": "fetched",
    "scales": {"s": {"base": "owner/model-1M"}},
    "data": {"source": "owner/talk"},
    "variants": {"base": {}, "a": {"objective": "ar_sft", "parent": "base", "stages": [1]}},
    "evaluation": {
        "benchmarks": {
            "gsm8k_cot": metric("GSM8K"),
            "ifeval": metric("IFEval"),
            "gpqa_main_cot_zeroshot": metric("GPQA"),
        },
        "panels": [],
    },
}


@pytest.fixture
def asked(tmp_path):
    """The words of the command, and the folder it fills."""
    root, file = tmp_path / "data", tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(RAW | {"data_root": str(root)}))
    return ["fetch", "--config", str(file)], root


def files_of(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


EXPECTED = {
    "models/owner/model-1M/config.json",
    "models/owner/model-1M/model.safetensors",
    "models/owner/model-1M/tokenizer.json",
    "datasets/owner/talk/data/train-0.jsonl",
    "gsm8k/README.md",
    "gsm8k/main/train-00000.parquet",
    "gsm8k/main/test-00000.parquet",
    "ifeval/input_data.jsonl",
    "gpqa/dataset.zip",
    "nltk_data/tokenizers/punkt_tab/english/collocations.tab",
}


def test_everything_a_study_needs_is_laid_out_and_opens_without_a_network(
    hub, asked, tmp_path, monkeypatch, capsys
):
    words, root = asked
    assert cli.main(words) == 0, capsys.readouterr().err
    assert files_of(root) == {*EXPECTED, "manifest.json"}
    manifest = json.loads((root / "manifest.json").read_text())["files"]
    assert set(manifest) == EXPECTED
    weights = manifest["models/owner/model-1M/model.safetensors"]
    content = hub.repositories["models/owner/model-1M"]["model.safetensors"]
    assert weights["sha256"] == hashlib.sha256(content).hexdigest()
    assert (weights["size"], weights["revision"]) == (len(content), COMMIT)
    assert weights["source"] == f"{hub.address}/owner/model-1M"

    def no_socket(*_, **__):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", no_socket)
    import datasets

    cache = str(tmp_path / "cache")
    opened = datasets.load_dataset(str(root / "gsm8k"), "main", cache_dir=cache)
    assert {split: rows.num_rows for split, rows in opened.items()} == {"train": 2, "test": 1}
    opened = datasets.load_dataset(str(root / "ifeval"), cache_dir=cache)
    assert opened["train"][0] == {"key": 1, "prompt": "hi"}
    study = load_study(words[-1])
    assert study.base("s") == str(root / "models/owner/model-1M")
    assert study.data.path == root / "datasets/owner/talk"


def test_what_is_there_is_not_fetched_again_and_what_is_missing_is(hub, asked):
    words, root = asked
    assert cli.main(words) == 0
    hub.asked.clear()
    assert cli.main(words) == 0
    assert hub.asked == []
    (root / "models/owner/model-1M/config.json").unlink()
    shutil.rmtree(root / "datasets")
    assert cli.main(words) == 0
    assert [path.rsplit("/", 1)[1] for path in hub.asked] == ["config.json", "train-0.jsonl"]
    assert files_of(root) == {*EXPECTED, "manifest.json"}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_with_another_hash_is_removed_and_the_others_stay(hub, asked, capsys, name):
    """Whether the hub tells SHA-256 of it (LFS) or git's hash."""
    words, root = asked
    hub.broken.add(name)
    assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"scales.s.base: {name} of owner/model-1M is not what its source says" in said
    folder = root / "models/owner/model-1M"
    assert not (folder / name).exists()
    assert (folder / "config.json").exists()
    hub.broken.clear()
    hub.asked.clear()
    assert cli.main(words) == 0
    assert f"/owner/model-1M/resolve/{COMMIT}/config.json" not in hub.asked
    assert (folder / name).read_bytes() == hub.repositories["models/owner/model-1M"][name]


def test_verify_finds_what_changed_without_a_network(hub, asked, capsys):
    words, root = asked
    assert cli.main(words) == 0
    hub.asked.clear()
    assert cli.main([*words, "--verify"]) == 0
    assert "10 files" in capsys.readouterr().out
    path = root / "gsm8k/main/test-00000.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (root / "gpqa/dataset.zip").unlink()
    assert cli.main([*words, "--verify"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"{path} is not what was fetched from" in said
    assert "dataset.zip is missing" in said
    assert hub.asked == []


def test_released_checkpoints_are_fetched_where_a_setting_asks_for_them(hub, asked, capsys):
    words, root = asked
    raw = yaml.safe_load(Path(words[-1]).read_text())
    raw["scales"]["s"]["released"] = {"a": "authors/a-released"}
    Path(words[-1]).write_text(yaml.safe_dump(raw))
    released = {"config.json": b"{}", "model.safetensors": b"w"}
    hub.repositories["models/authors/a-released"] = released
    assert cli.main([*words, "--set", "checkpoints=released"]) == 0, capsys.readouterr().err
    trains = "datasets/owner/talk/data/train-0.jsonl"
    weights = [f"models/authors/a-released/{name}" for name in released]
    assert files_of(root) == {*EXPECTED, *weights, "manifest.json"} - {trains}
    hub.asked.clear()
    assert cli.main([*words, "--set", "checkpoints=released"]) == 0  # they are no folders now
    assert hub.asked == []
    assert cli.main(words) == 0
    assert [path.rsplit("/", 1)[1] for path in hub.asked] == ["train-0.jsonl"]
    elsewhere = root.with_name("elsewhere")
    assert cli.main([*words, "--list", "--set", f"data_root={elsewhere}"]) == 0
    assert f"{elsewhere}/models/owner/model-1M" in capsys.readouterr().out


def test_the_home_folder_is_found(hub, asked, tmp_path, monkeypatch, capsys):
    words, _ = asked
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main([*words, "--list", "--to", "~/there"]) == 0
    assert f" → {tmp_path}/there/models/owner/model-1M" in capsys.readouterr().out


def test_a_listing_is_no_check(asked, capsys):
    words, _ = asked
    with pytest.raises(SystemExit):
        cli.main([*words, "--list", "--verify"])
    assert "--verify: not allowed with argument --list" in capsys.readouterr().err


def test_a_listing_has_sizes_and_fetches_nothing(hub, asked, capsys):
    words, root = asked
    hub.gated.add("datasets/owner/talk")
    assert cli.main([*words, "--list"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6
    assert f"model owner/model-1M → {root}/models/owner/model-1M: 0.0 MB" in told
    assert "size not known (data.source: owner/talk: gated" in told[1]
    assert not root.exists()


def one_line(capsys, words):
    assert cli.main(words) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mars: ")]
    assert len(said) == 1
    return said[0]


def test_a_gated_dataset_a_typo_and_a_wrong_revision_are_one_line(hub, asked, capsys):
    words, _ = asked
    hub.gated.add("models/owner/model-1M")
    said = one_line(capsys, words)
    assert "scales.s.base: owner/model-1M: gated: accept its terms" in said
    assert "HF_TOKEN" in said
    hub.gated.clear()
    del hub.repositories["datasets/owner/talk"]
    said = one_line(capsys, words)
    assert "data.source: owner/talk: no such dataset on the hub" in said
    item = Wanted("model", "owner/model-1M", "models/x", "scales.s.revision", "v2")
    with pytest.raises(FetchError, match="it has no revision 'v2'"):
        Fetcher(Path("unused")).listing(item)


def test_without_a_network_is_one_line(asked, capsys, monkeypatch):
    words, _ = asked
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "scales.s.base: owner/model-1M: no network" in one_line(capsys, words)


def test_a_disk_too_small_is_one_line_before_anything_is_fetched(hub, asked, capsys, monkeypatch):
    words, _ = asked
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("mars.planning.fetch.shutil.disk_usage", lambda _: usage)
    said = one_line(capsys, words)
    assert "GB are still to come" in said
    assert "--to" in said
    assert hub.asked == []


def test_a_model_without_safetensors_is_one_line(hub, asked, capsys):
    words, _ = asked
    del hub.repositories["models/owner/model-1M"]["model.safetensors"]
    assert "owner/model-1M has no weights (model*.safetensors)" in one_line(capsys, words)


def test_an_archive_that_is_not_the_authors_is_not_kept(hub, asked, capsys):
    words, root = asked
    hub.files["/dataset.zip"] = b"something else"
    assert "its hash differs" in one_line(capsys, words)
    assert not [path for path in files_of(root) if "gpqa" in path]


def test_a_package_that_is_not_what_its_index_says_is_not_kept(hub, asked, capsys):
    words, root = asked
    hub.files["/punkt_tab.zip"] += b"x"
    assert "punkt_tab.zip of punkt_tab is not what its source says" in one_line(capsys, words)
    assert not [path for path in files_of(root) if "nltk" in path]
    hub.files["/index.xml"] = b"<nltk_data/>"
    assert "has no package punkt_tab" in one_line(capsys, words)


def test_no_folder_to_fetch_to_is_one_line(asked, capsys):
    words, _ = asked
    Path(words[-1]).write_text(yaml.safe_dump(RAW))
    assert "data_root is not set; set it, or name a folder with --to" in one_line(capsys, words)


def test_the_papers_study_needs_its_models_its_data_and_the_six_benchmarks():
    raw = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text(encoding="utf-8"))
    raw["data_root"] = None
    items = wanted(parse_study(raw))
    assert [item.name for item in items if item.kind == "model"] == [
        "Qwen/Qwen2.5-0.5B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct",
    ]
    folders = {item.name: item.folder for item in items if item.kind == "dataset"}
    read = {name: folder for name, folder in BENCHMARK_FOLDERS.items() if folder != "gpqa"}
    assert folders == read | {"allenai/Dolci-Instruct-SFT": "datasets/allenai/Dolci-Instruct-SFT"}
    assert {item.name.rsplit("/", 1)[1] for item in items if item.kind == "file"} == {"dataset.zip"}
    assert [item.name for item in items if item.kind == "nltk"] == ["punkt_tab"]
    released = wanted(parse_study(raw | {"checkpoints": "released"}))
    assert sum(item.kind == "model" for item in released) == 2 + 12
    assert "data.source" not in {item.key for item in released}


def test_the_toy_studies_need_nothing(capsys):
    for name in ("embedded", "quick"):
        assert cli.main(["fetch", "--config", str(ROOT / "config" / f"{name}.yaml")]) == 0
        assert capsys.readouterr().out == "nothing to fetch: the study needs no network\n"


def test_the_authors_archive_is_the_one_that_is_read():
    """Where the benchmarks' files are at hand, the known hash is that of the file there."""
    path = ROOT.parent / "shared" / "bench" / "gpqa" / "dataset.zip"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted_module.GPQA_SHA256


def test_the_dataset_of_any_task_of_lm_eval_is_found_and_ours_need_none():
    """Also of a task that includes another file, and of groups of tasks."""
    assert task_dataset("humaneval_instruct") == ("humaneval", "openai/openai_humaneval")
    assert task_dataset("bbh") == ("bbh", "SaylorTwift/bbh")
    assert task_dataset("arc_easy") == (None, "allenai/ai2_arc")
    assert task_dataset("toy_bbh") == (None, None)
