"""Reading a study's results folder.

``results`` is always the folder of one study, ``results/<study>``. Loaders return what is there of
the study's own runs: a file that does not exist yet adds no rows, and neither does one that a
removed seed, scale or variant left behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from mars.analysis import columns
from mars.config import Study

EVALUATION_COLUMNS = {
    "study": "str",
    "seed": "int64",
    "scale": "str",
    "variant": "str",
    "benchmark": "str",
    "decoder": "str",  # ar, mars, block_diffusion, jacobi
    "block_size": "int64",  # tokens drafted a step; 1 for ar
    "tau": "float64",
    "rule": "str",  # probability, entropy, margin
    "cache": "str",
    "metric": "str",
    "score": "float64",  # per cent, the benchmark's primary metric
    "metrics": "str",  # JSON of every metric lm-eval reports
    "documents": "int64",
    "tokens": "int64",
    "forwards": "int64",
    "tokens_per_forward": "float64",
    "truncated": "float64",  # share of documents cut by the token budget
    "seconds": "float64",
    "checkpoint": "str",
    "records": "str",  # path below the study's results folder
    "max_new_tokens": "str",  # the budget; task: each task's own
    "dtype": "str",
    "chat_template": "str",  # hash
    "version": "str",  # of the benchmark's tasks
    "available": "float64",  # documents that the benchmark had, and
    "expected": "float64",  # should have
}
"""Columns of ``evaluation.csv``: one row per (benchmark, decoding setting)."""

_READ = {"category": "str", "Int32": "float64", "int32": "int64"}
THROUGHPUT_COLUMNS = {name: _READ.get(f.dtype, f.dtype) for name, f in columns.THROUGHPUT.items()}
"""Columns of ``throughput.csv``: one row per run of a method; ``mars.analysis.columns`` tells."""

PROFILE_COLUMNS = {
    "seed": "int64",
    "acceptance": "str",  # model, replayed
    "batch_size": "int64",
    "method": "str",  # as in throughput.csv, as the next two
    "cache": "str",
    "draft": "str",
    "model_forwards": "float64",
    "model_tokens": "float64",
    "ms": "float64",  # of a forward of the batch, as the next three
    "linear_ms": "float64",  # by PyTorch's profiler
    "attention_ms": "float64",
    "other_ms": "float64",
}
"""Columns read of ``throughput.profile.csv``: one row per method and batch size."""

ARRIVALS_COLUMNS = {
    "seed": "int64",
    "policy": "str",  # "tau 1", "tau 0.95", …; controller
    "request": "int64",
    "doc_id": "str",
    "phase": "int64",  # from 0, in the order of throughput.trace.loads
    "arrival": "float64",  # seconds on the trace's clock, as the next three
    "start": "float64",
    "first_token": "float64",
    "finish": "float64",
    "tokens": "int64",
    "forwards": "int64",
    "tau_start": "float64",  # its threshold when it started, and when it finished
    "tau_end": "float64",
    "queue": "int64",  # requests waiting when it arrived
    "score": "float64",  # 0 or 1
}
"""Columns of ``arrivals.csv``: one row per (policy, request)."""

TRAINING_COST_COLUMNS = {
    "seed": "int64",
    "scale": "str",
    "method": "str",  # ar_sft, mars; ar_released, released: those as in the released code
    "variant": "str",
    "block_size": "int64",
    "repeat": "int64",
    "conversations": "int64",  # of all the steps, as the next four
    "steps": "int64",
    "tokens": "int64",  # of conversations, one stream
    "columns": "int64",  # forwarded: both streams, padding included
    "seconds": "float64",
    "tokens_per_s": "float64",
    "gflops": "float64",  # computed, of all the steps
    "gflops_per_s": "float64",  # achieved
    "peak_gflops_per_s": "float64",  # of a large matrix product, measured there
    "peak_memory_mb": "float64",  # of a step: weights, gradients, optimizer, activations
}
"""Columns read of ``training_cost.csv``: one row per run of a method."""

TRAINING_COLUMNS = (
    *("seed", "scale", "variant", "step", "epoch", "examples", "learning_rate"),
    *("loss", "loss_ar", "loss_mask", "grad_norm", "seconds"),
)
"""Columns of the loss curves: one row per logged optimizer step."""


class ResultsError(ValueError):
    """A results file that cannot be read; the message is one line for the user."""


def run_folder(results: Path, seed: int, scale: str, variant: str) -> Path:
    """Where the results of one run lie."""
    return results / f"seed{seed}" / scale / variant


def files_of_runs(study: Study, results: Path, name: str) -> Iterator[tuple[int, str, str, Path]]:
    """(seed, scale, variant, path) of the file ``name`` of every run that has it."""
    for seed in study.seeds:
        for scale, variant in study.runs():
            path = run_folder(results, seed, scale, variant) / name
            if path.exists():
                yield seed, scale, variant, path


def _read_csv(path: Path, columns: dict[str, str], required: set[str]) -> pd.DataFrame:
    stat = path.stat()
    kinds, needed = tuple(columns.items()), frozenset(required)
    return _parse_csv(path, kinds, needed, stat.st_mtime_ns, stat.st_size).copy(deep=False)


@lru_cache(maxsize=256)
def _parse_csv(
    path: Path, kinds: tuple[tuple[str, str], ...], required: frozenset[str], mtime: int, size: int
) -> pd.DataFrame:
    """A file is read once, however many tables and figures are made of it, until it changes."""
    columns = dict(kinds)
    text = {name for name, kind in columns.items() if kind == "str"}
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(text, "str"), keep_default_na=True)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if lost := sorted(required - set(frame.columns)):
        raise ResultsError(f"{path}: no column {lost[0]!r}; delete the file and run its step again")
    for name, kind in columns.items():
        if name not in frame:
            frame[name] = pd.Series([None] * len(frame), dtype="str" if kind == "str" else "float")
        elif kind == "float64":
            frame[name] = pd.to_numeric(frame[name], errors="raise").astype("float64")
    return frame[list(columns)]


def load_evaluation(study: Study, results: Path) -> pd.DataFrame:
    """``evaluation.csv`` of every run as one frame (columns: ``EVALUATION_COLUMNS``)."""
    optional = {"metrics", "truncated", "seconds", "checkpoint", "cache", "max_new_tokens"}
    optional |= {"dtype", "chat_template", "version", "available", "expected"}
    required = set(EVALUATION_COLUMNS) - optional
    frames = [
        _read_csv(path, EVALUATION_COLUMNS, required)
        for *_, path in files_of_runs(study, results, "evaluation.csv")
    ]
    frames = [f.assign(block_size=f["block_size"].fillna(1).astype(int)) for f in frames if len(f)]
    if frames:
        return pd.concat(frames, ignore_index=True)
    return pd.DataFrame({n: pd.Series(dtype=k) for n, k in EVALUATION_COLUMNS.items()})


def load_throughput(study: Study, results: Path) -> pd.DataFrame:
    """``throughput.csv`` of every seed as one frame (columns: ``THROUGHPUT_COLUMNS``)."""
    files = throughput_files(study, results)
    return _load_seeds(files, THROUGHPUT_COLUMNS, set(THROUGHPUT_COLUMNS))


def load_profile(study: Study, results: Path) -> pd.DataFrame:
    """``throughput.profile.csv`` of every seed as one frame (columns: ``PROFILE_COLUMNS``)."""
    files = throughput_files(study, results)
    found = {seed: path.with_suffix(".profile.csv") for seed, path in files.items()}
    return _load_seeds(found, PROFILE_COLUMNS, set(PROFILE_COLUMNS) - {"seed"})


def load_arrivals(study: Study, results: Path) -> pd.DataFrame:
    """``arrivals.csv`` of every seed as one frame (columns: ``ARRIVALS_COLUMNS``)."""
    required = set(ARRIVALS_COLUMNS) - {"seed"}
    return _load_seeds(arrivals_files(study, results), ARRIVALS_COLUMNS, required)


def throughput_files(study: Study, results: Path) -> dict[int, Path]:
    """Where the wall-clock measurements of each seed lie, if the study has them measured."""
    seeds = study.seeds if study.throughput else []
    return {seed: results / f"seed{seed}" / "throughput.csv" for seed in seeds}


def arrivals_files(study: Study, results: Path) -> dict[int, Path]:
    """Where the arrival trace of each seed lies, if the study has one."""
    seeds = study.seeds if study.throughput and study.throughput.trace else []
    return {seed: results / f"seed{seed}" / "arrivals.csv" for seed in seeds}


def load_training_cost(study: Study, results: Path) -> pd.DataFrame:
    """``training_cost.csv`` of every seed as one frame (columns: ``TRAINING_COST_COLUMNS``)."""
    optional = {"seed", "gflops", "gflops_per_s", "peak_gflops_per_s"}
    files = training_cost_files(study, results)
    return _load_seeds(files, TRAINING_COST_COLUMNS, set(TRAINING_COST_COLUMNS) - optional)


def training_cost_files(study: Study, results: Path) -> dict[int, Path]:
    """Where the cost of a training step lies for each seed, if the study has it measured."""
    seeds = study.seeds if study.training_cost else []
    return {seed: results / f"seed{seed}" / "training_cost.csv" for seed in seeds}


def _load_seeds(
    files: dict[int, Path], columns: dict[str, str], required: set[str]
) -> pd.DataFrame:
    found = {seed: path for seed, path in files.items() if path.exists()}
    frames = [_read_csv(path, columns, required).assign(seed=seed) for seed, path in found.items()]
    if frames:
        return pd.concat(frames, ignore_index=True)
    return pd.DataFrame({n: pd.Series(dtype=k) for n, k in columns.items()})


def load_training(study: Study, results: Path) -> pd.DataFrame:
    """Loss curves of every run (columns: ``TRAINING_COLUMNS``)."""
    frames = []
    for seed, scale, variant, path in files_of_runs(study, results, "training.csv"):
        columns = dict.fromkeys(TRAINING_COLUMNS[3:], "float64")
        frame = _read_csv(path, columns, {"step", "loss"})
        frame.insert(0, "variant", variant)
        frame.insert(0, "scale", scale)
        frame.insert(0, "seed", seed)
        frames.append(frame)
    if frames:
        return pd.concat(frames, ignore_index=True)
    return pd.DataFrame({n: pd.Series(dtype="float64") for n in TRAINING_COLUMNS})


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object of the results folder, or None where the file is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ResultsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ResultsError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def training_costs(study: Study, results: Path) -> pd.DataFrame:
    """``training.json`` of every run, one row each, with seed, scale and variant."""
    rows = [
        {"seed": seed, "scale": scale, "variant": variant, **(read_json(path) or {})}
        for seed, scale, variant, path in files_of_runs(study, results, "training.json")
    ]
    return pd.DataFrame(rows, columns=None if rows else ["seed", "scale", "variant"])


def as_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as mappings, by column name."""
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


CELL = ("scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule")
"""What a number of the evaluation is of, but for the seed."""


def of_every_seed(study: Study, frame: pd.DataFrame, cell: Sequence[str]) -> pd.DataFrame:
    """The rows of those cells that every seed of the study has: for numbers over seeds.

    A number over fewer seeds is another number, and beside whole ones it would not show.

    Args:
        cell: the columns that tell cells apart.
    """
    groups = frame.groupby(list(cell), observed=True, dropna=False)
    return frame[groups["seed"].transform("nunique") == len(study.seeds)]


# ------------------------------------------------------------------------------------- records


def iter_records(path: Path) -> Iterator[dict[str, Any]]:
    """Records of one JSONL file; a half-written last line is left out."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                if line.endswith("\n"):
                    raise ResultsError(
                        f"{path}: line {number} is not JSON; delete it and evaluate again"
                    ) from None
