"""Folders of the datasets library and hub names; no test reaches the hub."""

import datasets
import pytest
from datasets import Dataset, DatasetDict, exceptions

from mars.config import Data
from mars.data import DataError, load_examples, tables

from .conftest import row, words

TURNS = Dataset.from_list([row(i) for i in range(4)])
PAIRS = Dataset.from_list(
    [{"id": i, "prompt": "w3", "response": f"w{10 + i}", "system": None} for i in range(4)]
)
SHAREGPT = Dataset.from_list(
    [
        {"conversations": [{"from": "human", "value": "w3"}, {"from": "gpt", "value": f"w{i}"}]}
        for i in range(10, 14)
    ]
)


def settings(source, **more) -> Data:
    return Data(source=str(source), **{"stage1_examples": 2, "stage2_examples": 2, **more})


@pytest.mark.parametrize("found", [TURNS, PAIRS, SHAREGPT], ids=["turns", "pairs", "sharegpt"])
@pytest.mark.parametrize("kind", ["saved", "saved splits", "parquet folder", "parquet file"])
def test_every_form_from_every_kind_of_folder(tokenizer, tmp_path, found, kind):
    folder = tmp_path / "set"
    if kind == "saved":
        found.save_to_disk(str(folder))
    elif kind == "saved splits":
        DatasetDict(train=found, test=found.select([])).save_to_disk(str(folder))
    else:
        found.to_parquet(str(folder / "train.parquet"))
    source = folder / "train.parquet" if kind == "parquet file" else folder
    data = settings(source)
    assert words(load_examples(data, tokenizer, [1, 2], 0)) == [0, 1, 2, 3]
    assert words(load_examples(data, tokenizer, [2], 0)) == [2, 3]
    assert data.files
    assert data.hub_name is None


def test_a_bad_row_of_a_dataset_is_named_by_its_index(tokenizer, tmp_path):
    rows = [{"prompt": "w3", "response": r} for r in ("w10", None, "w11", " ", "w12")]
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
    data = settings(tmp_path / "set")
    with pytest.raises(DataError, match=r"needs rows 3 to 4 and the dataset has 3 .*set row 3: "):
        load_examples(data, tokenizer, [2], 0)
    assert words(load_examples(data, tokenizer, [1], 0)) == [0, 1]


def test_columns_of_no_known_form_are_named(tokenizer, tmp_path):
    Dataset.from_list([{"ask": "w3", "answer": "w4"}]).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match=r"set: its columns are ask, answer; known are 'mess"):
        load_examples(settings(tmp_path / "set"), tokenizer, [1], 0)


@pytest.mark.parametrize(
    ("made", "given", "match"),
    [
        (
            "splits",
            {"split": "trian"},
            r"unknown split .*\['train', 'none'\].*set data.split",
        ),
        ("splits", {"split": "none"}, "none: the dataset has no rows"),
        ("splits", {"config": "main"}, r"data.config: .* was saved without"),
        ("splits", {"revision": "main"}, r"data.revision: .* is no hub dataset"),
        ("one", {"split": "train"}, r"data.split: .* holds one dataset without splits"),
        ("parquet", {"split": "trian"}, r"unknown split \"trian\".*set data.split"),
        ("parquet", {"config": "mian"}, r"BuilderConfig 'mian' not found.*set data.config"),
        ("file", {"split": "train"}, r"data.split: .* is one file"),
        ("empty", {}, r"cannot be read: .*doesn't contain any data files"),
        ("broken", {}, r"train.parquet: cannot be read: "),
    ],
)
def test_what_a_folder_has_not_is_one_line(tokenizer, tmp_path, made, given, match):
    folder = tmp_path / "set"
    folder.mkdir()
    source = folder
    if made == "splits":
        DatasetDict(train=TURNS, none=TURNS.select([])).save_to_disk(str(folder))
    elif made == "one":
        TURNS.save_to_disk(str(folder))
    elif made in ("parquet", "file"):
        TURNS.to_parquet(str(folder / "train.parquet"))
        source = folder / "train.parquet" if made == "file" else folder
    elif made == "broken":
        source = folder / "train.parquet"
        source.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=match) as error:
        load_examples(settings(source, **given), tokenizer, [1], 0)
    assert "\n" not in str(error.value)


# --- hub names


@pytest.mark.parametrize(
    ("source", "hub", "local"),
    [
        ("embedded", None, None),
        ("owner/name", "owner/name", None),
        ("hub:owner/name", "owner/name", None),
        ("hub:gsm8k", "gsm8k", None),
        ("data/rows.jsonl", None, "data/rows.jsonl"),
        ("data/rows.parquet", None, "data/rows.parquet"),
        ("./data/rows", None, "data/rows"),
        ("/data/rows", None, "/data/rows"),
        ("rows", None, "rows"),
        ("a/b/c", None, "a/b/c"),
    ],
)
def test_what_a_source_names(source, hub, local):
    data = Data(source=source)
    assert data.hub_name == hub
    assert (str(data.path) if data.path else None) == local


def test_a_folder_that_is_there_is_no_hub_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert Data(source="owner/name").hub_name is None


GATED = "Dataset 'owner/name' is a gated dataset on the Hub. You must be authenticated to access it"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            exceptions.DatasetNotFoundError(
                "Dataset 'owner/name' doesn't exist on the Hub or cannot be accessed."
            ),
            "owner/name: no such dataset on the Hugging Face Hub, or a private one; check owner",
        ),
        (exceptions.DatasetNotFoundError(GATED), "a gated dataset: accept its terms on https://hu"),
        (
            exceptions.DatasetNotFoundError("Revision 'v9' doesn't exist for dataset 'owner/name'"),
            "it has no revision 'v9'; correct data.revision",
        ),
        (ConnectionError("Couldn't reach 'owner/name' on the Hub"), "load it once with a network"),
        (ValueError("Config name is missing. Please pick one: ['a']"), "set data.config"),
        (RuntimeError("Dataset scripts are no longer supported, but found x.py"), "convert it"),
        (exceptions.DatasetGenerationError("An error\noccurred"), "cannot be read: An error occ"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_the_remedy(tokenizer, monkeypatch, raised, said):
    def load_dataset(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(tables.datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError) as error:
        load_examples(settings("owner/name", revision="v9"), tokenizer, [1], 0)
    assert str(error.value).startswith("owner/name: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_offline_and_not_in_the_cache(tokenizer, monkeypatch):
    """The library itself, with its own offline switch: no socket is opened."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"^nobody/nothing: the Hugging Face Hub cannot be reach"):
        load_examples(settings("hub:nobody/nothing"), tokenizer, [1], 0)


def test_a_hub_dataset_is_asked_for_as_the_settings_say(tokenizer, monkeypatch):
    asked = []

    def load_dataset(name, config, *, split, revision):
        asked.append((name, config, split, revision))
        return TURNS

    monkeypatch.setattr(tables.datasets, "load_dataset", load_dataset)
    given = {"config": "main", "split": "test", "revision": "v1"}
    assert words(load_examples(settings("hub:o/n", **given), tokenizer, [1], 0)) == [0, 1]
    load_examples(settings("o/n"), tokenizer, [1], 0)
    assert asked == [("o/n", "main", "test", "v1"), ("o/n", None, "train", None)]


@pytest.mark.parametrize("kind", ["saved", "parquet"])
def test_the_identity_of_a_dataset_is_what_it_holds(tmp_path, kind):
    """Neither path nor time, as the library's fingerprint is: a copy would retrain all."""

    def identity(name: str, *answers: str) -> str:
        rows = Dataset.from_list([{"prompt": "w3", "response": answer} for answer in answers])
        path = tmp_path / name
        if kind == "saved":
            rows.save_to_disk(str(path))
        else:
            path = path.with_suffix(".parquet")
            rows.to_parquet(str(path))
        return tables.open_dataset(settings(path)).identity

    one = identity("one", "w4", "w5")
    assert identity("two", "w4", "w5") == one
    assert identity("three", "w4", "w6") != one
    assert identity("four", "w4") != one
