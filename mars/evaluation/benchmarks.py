"""Benchmarks: lm-eval tasks, loaded once, and the scores lm-eval gives a model's outputs."""

from __future__ import annotations

import difflib
import logging
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.task
import lm_eval.utils
from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from mars.config import Benchmark, Study
from mars.evaluation import sandbox
from mars.evaluation.real import DATASETS, DOCUMENTS, files, gpqa, graders
from mars.evaluation.source import EvaluationError
from mars.evaluation.task_files import leaves, load_task, task_manager


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark ready to be run any number of times.

    Attributes:
        name: of the lm-eval task or group.
        metric: lm-eval's key of the primary metric.
        task_dict: what ``TaskManager.load`` returned.
        multiturn: shots are turns of their own.
        readers: task → what is kept of an answer; for a task without one the answer itself is.
    """

    name: str
    metric: str
    task_dict: Any
    multiturn: bool = False
    readers: Mapping[str, gpqa.Reader] = field(default_factory=dict)

    @property
    def tasks(self) -> dict[str, Any]:
        """The lm-eval tasks, the sub-tasks of a group."""
        return self.task_dict["tasks"]

    @property
    def versions(self) -> dict[str, str]:
        """Task name → version."""
        return {name: str(task.VERSION) for name, task in self.tasks.items()}

    @property
    def available(self) -> int:
        """Documents that its data has."""
        return sum(len(task.eval_docs) for task in self.tasks.values())

    @property
    def expected(self) -> int:
        """Documents that it should have, where that is known."""
        return DOCUMENTS.get(self.name, self.available)


@dataclass(frozen=True)
class Outcome:
    """The scores of one run.

    Attributes:
        score: the primary metric, in 0 … 1.
        metrics: every metric lm-eval reports: for a group, also each sub-task's.
        scores: (task, document) → primary metric of the document.
    """

    score: float
    metrics: dict[str, float]
    scores: dict[tuple[str, int], float]


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, lm-eval says only errors, and compiles each prompt template once.

    The bars of `datasets` are silent too, in whose place evaluation draws its own.
    """
    logger, environment = logging.getLogger("lm_eval"), lm_eval.utils.env
    level, bar, compiled = logger.level, lm_eval.api.task.tqdm, environment.from_string
    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = partial(bar, disable=True)
    environment.from_string = lru_cache(maxsize=256)(compiled)
    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm, environment.from_string = bar, compiled
        if bars:
            datasets.enable_progress_bars()


def _seed() -> None:
    """Set the global generators as ``lm_eval.simple_evaluate`` does."""
    import numpy as np
    import torch

    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)


def load_study(study: Study, names: Sequence[str] | None = None) -> dict[str, LoadedBenchmark]:
    """The benchmarks of a study (or those of them named), as ``load_benchmarks`` gives them."""
    evaluation = study.evaluation
    sandbox.allow_unprotected(evaluation.model_written_code == "unprotected")
    return load_benchmarks(
        {name: evaluation.benchmarks[name] for name in names or evaluation.benchmarks},
        data_root=study.data_root,
        multiturn=evaluation.fewshot_as_multiturn,
    )


def load_benchmarks(
    wanted: dict[str, Benchmark],
    include_path: Sequence[str | Path] = (),
    *,
    data_root: str | Path | None = None,
    multiturn: bool = False,
) -> dict[str, LoadedBenchmark]:
    """Load lm-eval tasks and check what can be checked before a model runs.

    Args:
        wanted: task or group name → how it is read.
        include_path: folders of further lm-eval task files.
        data_root: folder in which datasets and graders' files are found; from then on this
            process asks nothing of the network. None: the hub is asked, as lm-eval does.
        multiturn: shots are turns of their own.

    Raises:
        EvaluationError: an unknown task or metric key, a task that cannot be run here, or one
            whose data is not there or differs from what it reads.
    """
    root = None if data_root is None else files.open_root(data_root)
    with _quiet(), graders.code_in_the_sandbox():
        manager = task_manager(list(wanted), include_path)
        return {
            name: _load(manager, name, benchmark, root, multiturn)
            for name, benchmark in wanted.items()
        }


def _load(
    manager: TaskManager, name: str, benchmark: Benchmark, root: Path | None, multiturn: bool
) -> LoadedBenchmark:
    key = f"evaluation.benchmarks.{name}"
    parts = list(leaves(manager, name))
    paths = {str(part.get("dataset_path")) for part in parts}
    if "google/IFEval" in paths:
        graders.prepare_ifeval(root, key)
    changes = files.overrides(parts, root, key)
    _seed()
    try:
        task_dict = load_task(manager, name, changes)
    except (EvaluationError, sandbox.SandboxError) as error:
        raise EvaluationError(f"{key}: {error}") from None
    except Exception as error:  # whatever a task's file, its code or its data can do wrong
        raise EvaluationError(f"{key}: {files.why(error, parts, root)}") from error
    known = [dataset for path in paths if (dataset := DATASETS.get(path))]
    readers = {}
    for task in task_dict["tasks"].values():
        for dataset in known:
            files.check_columns(task, dataset.columns, key)
        _prepare(task, benchmark.num_fewshot, key)
        if "openai/openai_humaneval" in paths:
            graders.give_tests_the_helpers(task)
        if any(dataset.closed for dataset in known):
            readers[task.task_name] = gpqa.close(task)
    loaded = LoadedBenchmark(name, benchmark.metric, task_dict, multiturn, readers)
    _check_metric(loaded)
    return loaded


def _prepare(task: Any, num_fewshot: int, key: str) -> None:
    """Settle shots and documents, so that every later run sees the same ones."""
    name = f"{key}: {task.task_name}"
    if task.OUTPUT_TYPE != "generate_until":
        raise EvaluationError(
            f"{name}: output_type {task.OUTPUT_TYPE} needs log-likelihoods; choose a task that "
            "generates text"
        )
    if getattr(task, "UNSAFE_CODE", False) and not graders.graded_in_the_sandbox(task):
        raise EvaluationError(
            f"{name}: it runs model-written code in this process; choose a task whose grader "
            "uses the sandbox, such as humaneval_instruct"
        )
    if task.get_config("num_fewshot") == 0 and num_fewshot:
        raise EvaluationError(f"{key}.num_fewshot: the task has no examples; set it to 0")
    task.set_config(key="num_fewshot", value=num_fewshot)
    # some tasks shuffle with the global generator each time their documents are asked for
    _seed()
    documents = list(task.eval_docs)
    task.test_docs = task.validation_docs = lambda: documents


def shortfall(loaded: LoadedBenchmark) -> str | None:
    """A line for a real benchmark that has fewer documents than it should; None: it has all."""
    if loaded.available >= loaded.expected:
        return None
    return (
        f"evaluation.benchmarks.{loaded.name}: warning: {loaded.available} documents, but the "
        f"benchmark has {loaded.expected}: a file of it may be cut short; fetch it again"
    )


def metric_keys(loaded: LoadedBenchmark) -> list[str] | None:
    """The metric keys a benchmark will report; None where only running it can tell."""
    keys: dict[str, None] = {}
    for task in loaded.tasks.values():
        names = list(task.aggregation())
        for entry in task.config.metric_list or []:
            if not callable(entry["metric"]):
                continue
            if entry["metric"].__name__ != "pass_at_k":
                return None
            names += [f"pass@{k}" for k in entry["k"]]
        filters = [entry["name"] for entry in task.config.filter_list or [{"name": "none"}]]
        keys.update(dict.fromkeys(f"{m},{f}" for f in filters for m in names))
    group = loaded.task_dict.get("groups", {}).get(loaded.name)
    if group is None:
        return list(keys)
    summed = {entry.metric: entry.filter_list for entry in group.aggregate_metric_list or []}
    return [
        key
        for key in keys
        if (part := key.split(",", 1))[0] in summed
        and (summed[part[0]] is None or part[1] in (summed[part[0]] or ()))
    ]


def _check_metric(loaded: LoadedBenchmark) -> None:
    known = metric_keys(loaded)
    if known is not None and loaded.metric not in known:
        raise EvaluationError(_no_metric(loaded, known))


def _no_metric(loaded: LoadedBenchmark, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(loaded.metric, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it reports {', '.join(known) or 'none'}"
    return f"evaluation.benchmarks.{loaded.name}.metric: {loaded.metric!r} is not reported; {hint}"


def prompts(lm: LM, loaded: LoadedBenchmark, limit: int) -> list[str]:
    """The first prompts of a benchmark (of each sub-task), as evaluation gives them to a model."""
    return [instance.args[0] for instance in requests(lm, loaded, limit)]


def requests(lm: LM, loaded: LoadedBenchmark, limit: int | None) -> list[Any]:
    """The lm-eval instances of a benchmark, as evaluation gives them to a model."""
    found: list[Any] = []
    with _quiet():
        _seed()
        for task in loaded.tasks.values():
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
            task.build_all_requests(
                limit=limit,
                apply_chat_template=True,
                fewshot_as_multiturn=loaded.multiturn,
                chat_template=lm.apply_chat_template,
            )
            found += task.instances
    return found


def run_benchmark(lm: LM, loaded: LoadedBenchmark, limit: int | None = None) -> Outcome:
    """Have lm-eval ask the model and score its answers, with the chat template applied."""
    with _quiet():
        _seed()
        for task in loaded.tasks.values():
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        results: Any = evaluate(
            lm,
            loaded.task_dict,
            limit=limit,
            bootstrap_iters=0,
            apply_chat_template=True,
            fewshot_as_multiturn=loaded.multiturn,
            log_samples=True,
            confirm_run_unsafe_code=True,  # it runs in the sandbox, as was checked on loading
        )
    metrics = _numbers(results["results"][loaded.name])
    if loaded.metric not in metrics:
        raise EvaluationError(_no_metric(loaded, list(metrics)))
    for task in loaded.tasks:
        if task != loaded.name:
            of_task = _numbers(results["results"][task])
            metrics.update({f"{task}:{key}": value for key, value in of_task.items()})
    return Outcome(metrics[loaded.metric], metrics, _document_scores(results, loaded))


def _numbers(reported: dict[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in reported.items()
        if "," in key and "_stderr" not in key and isinstance(value, int | float)
    }


def _document_scores(results: Any, loaded: LoadedBenchmark) -> dict[tuple[str, int], float]:
    metric, chosen = loaded.metric.split(",", 1)
    scores = {}
    for task, samples in results["samples"].items():
        for sample in samples:
            if sample["filter"] == chosen and metric in sample:
                value = sample[metric]
                if isinstance(value, list | tuple):
                    value = sum(value) / len(value)
                scores[task, int(sample["doc_id"])] = float(value)
    return scores
