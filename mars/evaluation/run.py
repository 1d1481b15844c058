"""Evaluate one trained variant: every benchmark under every decoding setting of the study."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mars.config import Decoding, Study
from mars.decoding import attention
from mars.evaluation import sandbox
from mars.evaluation.benchmarks import (
    LoadedBenchmark,
    Outcome,
    load_study,
    run_benchmark,
    shortfall,
)
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import Record, as_csv, digest, write_atomically
from mars.evaluation.shares import take_in_shares
from mars.evaluation.source import Source, choose_device, open_checkpoint

log = logging.getLogger(__name__)

COLUMNS = (
    "study", "seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule",
    "cache", "metric", "score", "metrics", "documents", "tokens", "forwards", "tokens_per_forward",
    "truncated", "seconds", "checkpoint", "records", "max_new_tokens", "dtype", "device",
    "chat_template", "version", "available", "expected",
)  # fmt: skip


def evaluate_variant(
    study: Study,
    seed: int,
    scale: str,
    variant: str,
    checkpoint: Path | str,
    out: Path,
    *,
    generate: bool = True,
) -> None:
    """Evaluate a variant: records under ``out/evaluation``, then ``out/evaluation.csv``.

    Documents that have a record of these very settings are not decoded again, so a killed run
    goes on where it stopped.

    Args:
        study: the study.
        seed, scale, variant: which of its runs this is.
        checkpoint: folder, or ``embedded:<name>``.
        out: the run's folder, ``results/<study>/seed<k>/<scale>/<variant>``.
        generate: False scores the records that are there and runs no model.

    Raises:
        ConfigError, EvaluationError, CheckpointError, RecordError: one line for the user.
    """
    out = Path(out)
    study.check_run(seed, scale, variant, study.study)
    source = open_checkpoint(checkpoint, study.training.dtype, choose_device(), generate)
    loaded = load_study(study)
    for line in filter(None, map(shortfall, loaded.values())):
        log.warning(line)
    _use_threads(study.evaluation.threads)
    work = [(b, s) for b in loaded.values() for s in study.decodings(variant, b.name)]
    lm: MarsLM | None = None
    rows = []
    for number, (benchmark, settings) in enumerate(work, 1):
        path = out / "evaluation" / benchmark.name / f"{settings.id}.jsonl"
        if lm is None:
            lm = _model(study, source, settings)
        if not generate:
            lm.source = _as_recorded(source, out, benchmark.name)
        lm.use(
            settings,
            take_in_shares(path),
            benchmark.name,
            benchmark.versions,
            multiturn=benchmark.multiturn,
            readers=benchmark.readers,
        )
        outcome = run_benchmark(lm, benchmark, study.evaluation.limit_of(benchmark.name))
        records = lm.scored(outcome.scores)
        names = {"study": study.study, "seed": seed, "scale": scale, "variant": variant}
        row = names | _row(benchmark, settings, outcome, records) | _shaped_by(benchmark, lm)
        row |= {"records": _relative(path, out)}
        rows.append(row)
        print(
            f"[{number}/{len(work)}] {scale} {variant} {benchmark.name} {settings.id}: "
            f"{row['score']} %, {row['tokens_per_forward']} tokens per forward, "
            f"{row['seconds']} s",
            file=sys.stderr,
            flush=True,
        )
        _write_setup(benchmark, lm, out)
    write_atomically(out / "evaluation.csv", as_csv(rows, COLUMNS))


def rescore(
    study: Study, seed: int, scale: str, variant: str, checkpoint: Path | str, out: Path
) -> None:
    """Score the records of a finished evaluation anew; no model runs, none is loaded.

    The checkpoint's tokenizer and hash are needed to find the records that belong to it; precision
    and device are those that setup.json tells of, so that this works on another machine.
    """
    evaluate_variant(study, seed, scale, variant, checkpoint, out, generate=False)


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _model(study: Study, source: Source, settings: Decoding) -> MarsLM:
    evaluation = study.evaluation
    return MarsLM(source, evaluation.batch_size, evaluation.max_new_tokens, **settings.model_dump())


def _row(
    benchmark: LoadedBenchmark, settings: Decoding, outcome: Outcome, records: list[Record]
) -> dict[str, Any]:
    tokens = sum(record.tokens for record in records)
    forwards = sum(record.forwards for record in records)
    return {
        "benchmark": benchmark.name,
        "decoder": settings.decoder,
        "block_size": settings.block_size,
        "tau": settings.tau,
        "rule": settings.rule,
        "cache": settings.cache,
        "metric": benchmark.metric,
        "score": round(100 * outcome.score, 4),
        "metrics": json.dumps(outcome.metrics, sort_keys=True),
        "documents": len({(record.task, record.doc_id) for record in records}),
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": round(tokens / max(forwards, 1), 4),
        "truncated": round(sum(record.truncated for record in records) / len(records), 6),
        "seconds": round(sum(record.seconds for record in records), 3),
    }


def _shaped_by(benchmark: LoadedBenchmark, lm: MarsLM) -> dict[str, Any]:
    """What else makes a row another result, and how many documents the benchmark has here."""
    return {
        "checkpoint": lm.source.checkpoint,
        "max_new_tokens": lm.max_new_tokens,
        "dtype": lm.source.dtype,
        "device": lm.source.device,
        "chat_template": lm.template_hash(),
        "version": ", ".join(sorted(set(benchmark.versions.values()))),
        "available": benchmark.available,
        "expected": benchmark.expected,
    }


def _as_recorded(source: Source, out: Path, benchmark: str) -> Source:
    """The source as it was when a benchmark's records were made, by its setup.json."""
    path = out / "evaluation" / benchmark / "setup.json"
    if not path.is_file():
        return source
    setup = json.loads(path.read_text(encoding="utf-8"))
    return replace(source, dtype=setup["dtype"], device=setup["device"])


def _relative(path: Path, out: Path) -> str:
    """Relative to ``results/<study>``, three folders above the run's."""
    return Path(os.path.relpath(path.resolve(), out.resolve() / "../../..")).as_posix()


def _write_setup(benchmark: LoadedBenchmark, lm: MarsLM, out: Path) -> None:
    """Beside the records: what lm-eval asked, to check a prompt by eye."""
    from lm_eval import __version__

    tasks: dict[str, dict[str, Any]] = {}
    for name, task in benchmark.tasks.items():
        prompt, gen_kwargs = task.instances[0].args[:2]
        tasks[name] = {
            "version": str(task.VERSION),
            "documents": len({instance.doc_id for instance in task.instances}),
            "num_fewshot": task.get_config("num_fewshot"),
            "generation_kwargs": gen_kwargs,
            "first_prompt_hash": digest(prompt),
        }
        if name not in benchmark.readers:  # whose text may not be kept
            tasks[name] |= {"first_prompt": prompt, "first_prompt_ids": lm.tok_encode(prompt)}
    setup = {
        "benchmark": benchmark.name,
        "metric": benchmark.metric,
        "lm_eval": __version__,
        "checkpoint": lm.source.checkpoint,
        "chat_template": lm.template_hash(),
        "dtype": lm.source.dtype,
        "device": lm.source.device,
        "attention": attention.used_on(lm.source.device),
        "mask_token_id": lm.source.mask_token[0],
        "mask_token_source": lm.source.mask_token[1],
        "max_new_tokens": lm.max_new_tokens,
        "fewshot_as_multiturn": benchmark.multiturn,
        "sandbox": sandbox.in_use(),
        "tasks": tasks,
    }
    path = out / "evaluation" / benchmark.name / "setup.json"
    write_atomically(path, json.dumps(setup, indent=2, ensure_ascii=False) + "\n")
