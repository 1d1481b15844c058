"""What lm-eval's graders need besides data: the sandbox for code, NLTK's tables, fixed seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mars.evaluation.code_eval import METRIC
from mars.evaluation.real.files import check_sizes
from mars.evaluation.source import EvaluationError


@contextmanager
def code_in_the_sandbox() -> Iterator[None]:
    """Tasks that are loaded inside have the sandbox where they ask `evaluate` for ``code_eval``.

    Its own code would come from the network, and would run a model's programs in this process.
    """
    import evaluate

    theirs = evaluate.load

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        return METRIC if path == "code_eval" else theirs(path, *args, **kwargs)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = theirs


def graded_in_the_sandbox(task: Any) -> bool:
    """Whether what a task's grader runs is run in the sandbox."""
    graders = [entry.get("metric") for entry in task.config.metric_list or []]
    graders.append(task.config.process_results)
    held = [value for each in graders for value in getattr(each, "__globals__", {}).values()]
    return any(value is METRIC for value in held)


def give_tests_the_helpers(task: Any) -> None:
    """Put each HumanEval problem's own text before its tests.

    Some problems give functions that their tests call too, such as a polynomial's value. By itself
    lm-eval has the tests call those of the program, which may have made them anew.
    """
    tests = task.config.doc_to_target
    task.set_config(key="doc_to_target", value="{{ prompt }}\n" + tests)


def prepare_ifeval(data_root: Path | None, key: str) -> None:
    """Find NLTK's sentence tables, which IFEval would download, and fix langdetect's dice.

    Raises:
        EvaluationError: they are not there.
    """
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0
    if data_root is not None:
        check_sizes(data_root, "nltk_data")
        folder = str(data_root / "nltk_data")
        os.environ["NLTK_DATA"] = folder
        if folder not in nltk.data.path:
            nltk.data.path.insert(0, folder)
    elif not _has_tables():
        nltk.download("punkt_tab", quiet=True)
    if not _has_tables():
        remedy = "run `python -m nltk.downloader punkt_tab` where there is a network"
        if data_root is not None:
            remedy = f"put it into {data_root / 'nltk_data' / 'tokenizers'} (`mars fetch` does)"
        raise EvaluationError(
            f"{key}: NLTK's punkt_tab, which its grader needs, is missing or not whole; {remedy}"
        )


def _has_tables() -> bool:
    """Whether they can be read: with their folder alone the grader would fail, at the very end."""
    from nltk.tokenize import PunktTokenizer

    try:
        PunktTokenizer("english")
    except (LookupError, OSError, ValueError):
        return False
    return True
