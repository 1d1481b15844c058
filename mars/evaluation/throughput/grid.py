"""The wall-clock grid (Table 5): every method on the same prompts, repeats interleaved.

Nothing else should run on the machine meanwhile. Prompts are tokenised before any clock starts;
one warm-up a method and batch size is run and dropped; the methods take turns within a repeat, so
that a slow spell of the machine falls on all of them, and each repeat begins with another one.

An interrupted measurement goes on where it stopped, in the same order: the methods that had no
turn yet in the repeat that was cut have theirs now. The manifest counts the interruptions.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mars.config import Study, Throughput
from mars.decoding.contract import Generation, Work
from mars.evaluation.benchmarks import load_study, prompts
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import as_csv, decoding_code, digest, fingerprint, write_atomically
from mars.evaluation.source import EvaluationError, Source, choose_device, open_checkpoint
from mars.evaluation.throughput import profile
from mars.evaluation.throughput.counted import bytes_moved, flops
from mars.evaluation.throughput.machine import manifest, peak_memory_mb
from mars.evaluation.throughput.methods import Batch, Method, Workbench
from mars.evaluation.throughput.prepare import load_models, table_of_costs
from mars.evaluation.throughput.stages import Stage, only_one_token, positions_needed, stages
from mars.evaluation.throughput.summary import lines, summary
from mars.measurement import Partial, ceilings, clock, memory_for, versions, warn_if_busy

COLUMNS = (
    "study", "seed", "scale", "benchmark", "part", "acceptance", "batch_size", "method", "cache",
    "cache_block", "block_size", "tau", "draft", "scheduling", "linears", "repeat", "prompts",
    "max_new_tokens", "seconds", "first_token_seconds", "prefill_seconds", "decode_tokens_per_s",
    "tokens", "tokens_per_s", "forwards", "tokens_per_forward", "model_forwards", "model_tokens",
    "gflops_per_s", "gbytes_per_s", "peak_gflops_per_s", "peak_gbytes_per_s", "peak_memory_mb",
    "checkpoint",
)  # fmt: skip

PROFILED_BATCHES = 1
"""Of a run: a mean forward needs no more, and the profiler keeps every operation in memory."""


@dataclass(frozen=True)
class _Run:
    """What the clock said of one run of a method over all batches.

    Attributes:
        seconds: of the run.
        first_tokens: of each batch, seconds in which it yields one token, measured apart.
        made: the responses.
        work: what the model computed.
    """

    seconds: float
    first_tokens: list[float]
    made: list[Generation]
    work: Work


def measure(
    study: Study, seed: int, checkpoint: Path | str, ar_checkpoint: Path | str, out: Path
) -> None:
    """Measure the study's wall-clock grid and write a CSV, one row per run of a method.

    Beside it, ``<out stem>.environment.json`` says where it was measured, and
    ``<out stem>.costs.json`` what a forward costs there, and ``<out stem>.profile.csv`` on what
    its time goes. The last line printed is a JSON summary.

    Args:
        study: the study; its ``throughput`` section is the grid.
        seed: of replayed acceptance and lengths; named in the rows.
        checkpoint: of the MARS variant.
        ar_checkpoint: of the autoregressive variant it is compared with.
        out: the CSV file.
    """
    grid, out = study.throughput, Path(out)
    if grid is None:
        raise EvaluationError(f"study {study.study!r} has no throughput section; add one")
    warn_if_busy()
    torch.set_num_threads(grid.threads)
    device = choose_device()
    ours = open_checkpoint(checkpoint, study.training.dtype, device)
    theirs = open_checkpoint(ar_checkpoint, study.training.dtype, device)
    ids = _prompts(study, grid, ours)
    partial = Partial(out, _fingerprint(study, grid, seed, device, ours, theirs, ids))
    size = grid.block_size or study.variants[grid.variant].block_size
    again = open_checkpoint(ar_checkpoint, study.training.dtype, device)
    models = load_models(grid, ours, theirs, again, partial)
    with memory_for("throughput.batch_sizes", max(grid.batch_sizes)):
        costs = table_of_costs(grid, size, models, max(map(len, ids)), partial)
    best = ceilings(partial, models.mars.dtype, device)
    positions = max(positions_needed(grid, ids), models.mars.config.max_position_embeddings)
    bench = Workbench(grid, size, models, costs, positions, device)
    named = {
        "study": study.study,
        "seed": seed,
        "scale": grid.scale,
        "benchmark": grid.benchmark,
        "peak_gflops_per_s": round(best.flops / 1e9, 2),
        "peak_gbytes_per_s": round(best.bytes / 1e9, 3),
    }
    todo = list(stages(bench, ids, seed))
    rows = _measure_all(todo, grid.repeats, named, device, partial)
    profiles = _profile_all(todo, named, device, partial)
    sessions = partial.sessions
    made = manifest(grid, device, ours.dtype, models, costs, best, positions, sessions)
    write_atomically(out.with_suffix(".costs.json"), costs.text())
    write_atomically(out.with_suffix(".environment.json"), json.dumps(made, indent=2) + "\n")
    write_atomically(out.with_suffix(".profile.csv"), as_csv(profiles, profile.COLUMNS))
    write_atomically(out, as_csv(rows, COLUMNS))
    partial.remove()
    print(json.dumps(summary(rows)))


def _prompts(study: Study, grid: Throughput, source: Source) -> list[tuple[int, ...]]:
    """The benchmark's first prompts, as ids."""
    loaded = load_study(study, [grid.benchmark])[grid.benchmark]
    lm = MarsLM(source)
    texts = prompts(lm, loaded, grid.prompts)[: grid.prompts]
    if len(texts) < grid.prompts:
        raise EvaluationError(
            f"throughput.prompts is {grid.prompts}, but {grid.benchmark} has {len(texts)} "
            f"documents; set at most {len(texts)}"
        )
    return [tuple(lm.tok_encode(text)) for text in texts]


def _fingerprint(
    study: Study,
    grid: Throughput,
    seed: int,
    device: str,
    ours: Source,
    theirs: Source,
    ids: Sequence[tuple[int, ...]],
) -> str:
    """Of everything that shapes the numbers: what differs in any of it is another measurement."""
    code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return fingerprint(
        {
            "machine": versions(device, ours.dtype),
            "grid": grid.model_dump(mode="json", exclude={"trace"}),
            "named": [study.study, seed],
            "prompts": digest(json.dumps(ids)),
            "block_size": study.variants[grid.variant].block_size,
            "checkpoints": [ours.checkpoint, theirs.checkpoint],
            "code": [hashlib.sha256(code).hexdigest(), decoding_code("ar"), decoding_code("mars")],
        }
    )


# --------------------------------------------------------------------------- the loop


def _measure_all(
    todo: Sequence[Stage], repeats: int, named: dict[str, Any], device: str, partial: Partial
) -> list[dict[str, Any]]:
    """Rows of all stages, in their order; those that an interrupted run left are not run again."""
    rows: list[dict[str, Any]] = []
    total = repeats * sum(len(stage.methods) for stage in todo)
    partial.begin_session()
    with tqdm(total=total, unit="run", file=sys.stderr, smoothing=0.1) as progress:
        for stage in todo:
            made = _measure_stage(stage, repeats, named, device, partial, progress)
            for line in lines(stage.name, stage.batch_size, made):
                progress.write(line, file=sys.stderr)
            rows += made
    return rows


def _measure_stage(
    stage: Stage,
    repeats: int,
    named: dict[str, Any],
    device: str,
    partial: Partial,
    progress: tqdm[Any],
) -> list[dict[str, Any]]:
    """Every method once a repeat, each repeat beginning with another one."""
    rows = []
    warm = False
    for repeat in range(repeats):
        turn = repeat % len(stage.methods)
        for method in (*stage.methods[turn:], *stage.methods[:turn]):
            key = f"run: {stage.name} {stage.batch_size} {method.label} {repeat}"
            progress.set_description(f"{stage.name}, {stage.batch_size} rows, {method.label}")
            if key in partial:
                progress.initial += 1  # done before: says nothing of how long the others take
                progress.n += 1
            else:
                with memory_for(stage.setting, stage.batch_size):
                    if not warm:
                        _warm_up_all(stage, device)
                        _measure_memory(stage, device, partial)
                        warm = True
                    memory = {"peak_memory_mb": partial[_memory(stage, method)]}
                    partial.keep(key, _row(stage, method, repeat, {**named, **memory}, device))
                progress.update()
            rows.append(partial[key])
    return rows


def _warm_up_all(stage: Stage, device: str) -> None:
    """Not timed: allocations, kernels and caches of the first call, and what is compiled.

    All batches where anything is compiled or captured, which happens once a shape.
    """
    for method in stage.methods:
        batches = stage.batches if method.compiled else stage.batches[:1]
        for batch in batches:
            method.decode(only_one_token(batch))
        method.run(batches)
    clock(device)


def _memory(stage: Stage, method: Method) -> str:
    """The key of a method's peak memory among what is kept."""
    return f"memory: {stage.name} {stage.batch_size} {method.label}"


def _measure_memory(stage: Stage, device: str, partial: Partial) -> None:
    """Each method's peak memory, of the stage's longest batch; measured once a measurement."""
    for method in stage.methods:
        if (key := _memory(stage, method)) not in partial:
            partial.keep(key, round(peak_memory_mb(method, stage.longest, device), 3))


def _time(method: Method, batches: Sequence[Batch], device: str) -> _Run:
    """Decode all batches under the clock; before that, each one's first tokens."""
    first_tokens = []
    for batch in batches:
        asked = only_one_token(batch)
        start = clock(device)
        method.decode(asked)
        first_tokens.append(clock(device) - start)
    method.decoder.work = Work()
    start = clock(device)
    made = method.run(batches)
    seconds = clock(device) - start
    return _Run(seconds, first_tokens, made, method.decoder.work)


def _row(
    stage: Stage, method: Method, repeat: int, named: dict[str, Any], device: str
) -> dict[str, Any]:
    """Run a method and write down what came of it."""
    run = _time(method, stage.batches, device)
    tokens, forwards = (sum(getattr(g, of) for g in run.made) for of in ("tokens", "forwards"))
    prefill = sum(run.first_tokens)
    after = tokens - len(run.made)
    decoding = run.seconds - prefill
    values = {
        **named,
        "part": stage.part,
        "acceptance": stage.acceptance,
        "batch_size": stage.batch_size,
        **method.columns,
        "repeat": repeat,
        "prompts": stage.requests,
        "max_new_tokens": stage.max_new_tokens,
        "seconds": round(run.seconds, 4),
        "first_token_seconds": round(statistics.median(run.first_tokens), 5),
        "prefill_seconds": round(prefill, 4),
        # where nothing follows the first tokens, there is no rate of it
        "decode_tokens_per_s": round(after / decoding, 2) if after and decoding > 0 else None,
        "tokens": tokens,
        "tokens_per_s": round(tokens / run.seconds, 2),
        "forwards": forwards,
        "tokens_per_forward": round(tokens / forwards, 4),
        "model_forwards": run.work.forwards,
        "model_tokens": run.work.tokens,
        "gflops_per_s": round(flops(run.work, method.model.config) / run.seconds / 1e9, 3),
        "gbytes_per_s": round(
            bytes_moved(run.work, method.model.config, method.model.dtype) / run.seconds / 1e9, 3
        ),
    }
    return {column: "" if values[column] is None else values[column] for column in COLUMNS}


def _profile_all(
    todo: Sequence[Stage], named: dict[str, Any], device: str, partial: Partial
) -> list[dict[str, Any]]:
    """Where the time goes, of our methods and of what they are held against.

    At replayed acceptance where there is any, so that no method has less to do than another.
    """
    grids = [stage for stage in todo if stage.part == "grid"]
    chosen = [stage for stage in grids if stage.acceptance == grids[-1].acceptance]
    rows = []
    for stage in chosen:
        for method in stage.methods:
            if (method.name, method.cache, method.draft) not in profile.PROFILED:
                continue
            key = f"profile: {stage.name} {stage.batch_size} {method.label}"
            if key not in partial:
                some = stage.batches[:PROFILED_BATCHES]
                with memory_for(stage.setting, stage.batch_size):
                    method.run(some)  # warms up
                    partial.keep(key, profile.profile_run(method, some, device))
            where = {
                "part": stage.part,
                "acceptance": stage.acceptance,
                "batch_size": stage.batch_size,
            }
            rows.append(profile.row({**named, **where, **method.columns, **partial[key]}))
    return rows
