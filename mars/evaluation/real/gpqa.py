"""GPQA, whose text never reaches the disk: its authors ask that it not be spread in the clear.

Questions come from the authors' encrypted zip, or from the hub, straight into memory. Of an answer
only the letters are kept that lm-eval's filters read in it, which is all its metrics need.
"""

from __future__ import annotations

import csv
import io
import json
import string
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import lm_eval
from lm_eval.api.filter import Filter, FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.filters import extraction

from mars.config import BENCHMARK_FOLDERS
from mars.evaluation.real import DATASETS
from mars.evaluation.records import digest
from mars.evaluation.source import EvaluationError

HUB = "Idavidrein/gpqa"
PASSWORD = b"deserted-untie-orchid"
"""Public, in the authors' README: it keeps text crawlers out, not readers."""


@dataclass(frozen=True)
class Reader:
    """What is kept of a task's answers: filter → the letter it reads, in brackets; empty: none.

    Attributes:
        filters: lm-eval's, of the task.
        identity: hash of what they are: another filter may read another letter.
    """

    filters: list[Any]
    identity: str

    def __call__(self, document: dict[str, Any], answer: str) -> dict[str, str]:
        instance = Instance("generate_until", document, ("",), 0, resps=[answer])
        with _few_characters(answer, *document["choices"]):
            for each in self.filters:
                each.apply([instance])
        return {each.name: _letter(instance.filtered_resps[each.name]) for each in self.filters}


def in_memory(config: str, data_root: Path | None, **_: Any) -> datasets.DatasetDict:
    """lm-eval's ``custom_dataset`` of a GPQA task.

    Args:
        config: gpqa_main, gpqa_diamond or gpqa_extended.
        data_root: the folder that has ``gpqa/dataset.zip``; None asks the hub.

    Raises:
        EvaluationError: the file is not there, not whole, or has other columns.
    """
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(_rows(config, data_root))})


@lru_cache(maxsize=4)
def _rows(config: str, data_root: Path | None) -> list[dict[str, str]]:
    if data_root is None:
        where, text = f"{HUB} on the hub", _from_hub(config)
    else:
        path = data_root / BENCHMARK_FOLDERS[HUB] / "dataset.zip"
        where, text = str(path), _from_zip(path, config)
    wanted = DATASETS[HUB].columns
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in wanted if name not in (reader.fieldnames or ())]
    if missing:
        raise EvaluationError(f"{where}: {config} has no column {', '.join(map(repr, missing))}")
    rows = [{name: row[name] for name in wanted} for row in reader]
    if not rows or any(row[name] is None for row in rows for name in wanted):
        raise EvaluationError(f"{where}: {config} ends in the middle of a row; fetch it again")
    return rows


def _from_zip(path: Path, config: str) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(f"dataset/{config}.csv", pwd=PASSWORD).decode("utf-8")
    except FileNotFoundError:
        raise EvaluationError(
            f"{path} is not there: it is the authors' dataset.zip; `mars fetch` lays it out"
        ) from None
    except KeyError:
        raise EvaluationError(f"{path}: it holds no {config}; fetch it again") from None
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise EvaluationError(
            f"{path}: cannot be read: {type(error).__name__}: {error}; fetch it again"
        ) from None


def _from_hub(config: str) -> str:
    """The file's text, past the hub's cache on disk."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(HUB, f"{config}.csv", repo_type="dataset")
    reply = get_session().get(url, headers=build_hf_headers(), follow_redirects=True)
    hf_raise_for_status(reply)
    return reply.content.decode("utf-8")


def close(task: Any) -> Reader:
    """Have an lm-eval task score letters instead of answers, and return what reads the letters.

    Afterwards the task expects for each answer the JSON of what the reader gave for it. Its metrics
    ignore case and punctuation, so that they give a letter the score of the answer.
    """
    filters = list(task._filters)
    task._filters = [FilterEnsemble(each.name, [partial(_Kept, each.name)]) for each in filters]
    made = json.dumps([lm_eval.__version__, task.config.filter_list], sort_keys=True)
    return Reader(filters, digest(made))


@contextmanager
def _few_characters(*texts: str) -> Iterator[None]:
    """Inside, lm-eval's filter of choices looks for punctuation among these texts' characters only.

    It goes through all of Unicode at each call, a third of a second, to drop what no text has.
    """
    together = "".join(texts)
    highest = max(map(ord, together + together.lower()), default=0)
    whole, extraction.sys = extraction.sys, SimpleNamespace(maxunicode=highest + 1)
    try:
        yield
    finally:
        extraction.sys = whole


class _Kept(Filter):
    """What a filter has read before."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def apply(self, resps: list[Any] | Iterable[Any], docs: Sequence[Any]) -> list[str]:
        said = [answers[0] for answers in resps]  # empty: was not asked
        return [json.loads(text)[self.name] if text else "" for text in said]


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _letter(read: str) -> str:
    """``(B)`` for what a metric that ignores case and punctuation takes for B, else nothing."""
    bare = read.translate(_NO_PUNCTUATION).upper()
    return f"({bare})" if bare in set(string.ascii_uppercase) else ""
