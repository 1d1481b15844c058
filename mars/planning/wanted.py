"""What a study needs from the network, and where below ``data_root`` each of it goes.

Which dataset a benchmark reads is asked of lm-eval's own task files, not written down here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mars.config import BENCHMARK_FOLDERS, Study, hub_reference

MODEL_FILES = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "*.md", "LICENSE*",
)  # fmt: skip
"""Of a model's repository: weights and tokenizer in the one form that is read, no code."""

DATA_FILES = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.json", "*.json.gz", "*.csv", "*.md")
"""Of a dataset's repository: rows as they are read, and the card that names splits; no scripts."""

GPQA = "https://github.com/idavidrein/gpqa/raw/main/dataset.zip"
GPQA_SHA256 = "461ae7329f15a3e35f8184d2dac24b990f34fdf12f366ca4062d8e6638cd08dc"
"""The authors' own archive, which stays encrypted: they ask that its text is nowhere in clear."""


@dataclass(frozen=True)
class Wanted:
    """One thing to fetch.

    Attributes:
        kind: a hub model, a hub dataset, one file, or a package of NLTK's data.
        name: ``owner/name``, an address, or a package's name.
        folder: where it goes below ``data_root``.
        key: the setting of the study that asks for it.
        revision: commit, branch or tag; None: the newest.
        sha256: of a file whose content is known.
    """

    kind: Literal["model", "dataset", "file", "nltk"]
    name: str
    folder: str
    key: str
    revision: str | None = None
    sha256: str | None = None


def wanted(study: Study) -> list[Wanted]:
    """Everything that a study needs from the network, each once; nothing that is here already."""
    found = [*_models(study), *_training_data(study), *_benchmarks(study)]
    return list({(item.kind, item.name, item.revision): item for item in found}.values())


def _models(study: Study) -> Iterator[Wanted]:
    for scale, made in study.scales.items():
        yield from _model(f"scales.{scale}.base", made.base, made.revision)
        if study.checkpoints == "released":
            for name, ref in made.released.items():
                yield from _model(f"scales.{scale}.released.{name}", ref)
    for name, variant in study.variants.items():
        if variant.checkpoint is not None:
            yield from _model(f"variants.{name}.checkpoint", variant.checkpoint)


def _model(key: str, ref: str, revision: str | None = None) -> Iterator[Wanted]:
    named = None if Path(ref).exists() or ref.startswith(_MADE_HERE) else hub_reference(ref)
    if named is not None:
        yield Wanted("model", named[0], f"models/{named[0]}", key, named[1] or revision)


_MADE_HERE = ("embedded:", "results/", "./", "../")


def _training_data(study: Study) -> Iterator[Wanted]:
    name = study.data.hub_name
    if name and any(study.is_trained(variant) for variant in study.variants):
        revision = study.data.revision
        yield Wanted("dataset", name, f"datasets/{name}", "data.source", revision)


def _benchmarks(study: Study) -> Iterator[Wanted]:
    for name in study.evaluation.benchmarks:
        key = f"evaluation.benchmarks.{name}"
        folder, dataset = task_dataset(name)
        if folder == "gpqa":
            yield Wanted("file", GPQA, "gpqa", key, sha256=GPQA_SHA256)
        elif dataset is not None:
            yield Wanted("dataset", dataset, folder or f"datasets/{dataset}", key)
        if folder == "ifeval":
            yield Wanted("nltk", "punkt_tab", "nltk_data", key)


def benchmark_files(study: Study) -> list[Path]:
    """The files below data_root that a study's benchmarks are read from; without one none."""
    if study.data_root is None:
        return []
    folders = {Path(study.data_root) / made.folder for made in _benchmarks(study)}
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def task_dataset(task: str) -> tuple[str | None, str | None]:
    """Where below ``data_root`` a task's dataset has a place of its own, and its name on the hub.

    Looked up in the task files of the installed lm-eval, which is not imported: it takes seconds.
    A group of tasks has the dataset of its tasks. (None, None): a task of ours, or an unknown one.
    """
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    packaged = Path(spec.origin).parent / "tasks"
    for folder in BENCHMARK_FOLDERS.values():  # which lm-eval's folders of their tasks have too
        if path := _task_file(task, packaged / folder):
            return folder, _dataset(path)
    if _task_file(task, OURS) is None and (path := _task_file(task, packaged)):
        return None, _dataset(path)
    return None, None


OURS = Path(__file__).parents[1] / "evaluation" / "tasks"


def _task_file(task: str, root: Path) -> Path | None:
    """The file below a folder that defines a task or a group of tasks."""
    named = re.compile(rf"^(task|group): *['\"]?{re.escape(task)}['\"]? *$", re.MULTILINE)
    for path in sorted(root.rglob("*.yaml")):
        if named.search(path.read_text(encoding="utf-8")):
            return path
    return None


def _dataset(path: Path) -> str | None:
    """The dataset that a task file names, or the one it includes, or else those beside it."""
    at: Path | None = path
    while at is not None:
        text = at.read_text(encoding="utf-8")
        if found := _PATH.search(text):
            return found[1]
        included = _INCLUDE.search(text)
        at = at.parent / included[1] if included else None
    beside = [one.read_text(encoding="utf-8") for one in sorted(path.parent.glob("*yaml"))]
    paths = {found[1] for text in beside if (found := _PATH.search(text))}
    return paths.pop() if len(paths) == 1 else None


_PATH = re.compile(r"^dataset_path: *['\"]?([\w./-]+)['\"]? *$", re.MULTILINE)
_INCLUDE = re.compile(r"^include: *['\"]?([\w./-]+)['\"]? *$", re.MULTILINE)
