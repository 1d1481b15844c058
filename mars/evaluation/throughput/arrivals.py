"""The arrival trace: the same requests and arrivals under fixed thresholds and a controller of τ.

``arrivals.csv`` has one row per policy and request; the answers are scored by lm-eval.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.instance import Instance

from mars.config import Decoding, Study, Throughput
from mars.decoding.contract import Generation, Request
from mars.decoding.engine import Engine
from mars.decoding.linears import choose_linears
from mars.decoding.make import make_decoder
from mars.evaluation.benchmarks import load_study, requests, run_benchmark
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import as_csv, write_atomically
from mars.evaluation.source import EvaluationError, choose_device, open_checkpoint
from mars.evaluation.throughput.trace import (
    Clock,
    Served,
    draw_arrivals,
    policies,
    serve,
    service_rate,
)
from mars.measurement import memory_for, versions, warn_if_busy
from mars.models import mask_token_id

COLUMNS = (
    "policy", "request", "doc_id", "phase", "arrival", "start", "first_token", "finish", "tokens",
    "forwards", "tau_start", "tau_end", "queue", "score",
)  # fmt: skip


def measure_arrivals(study: Study, seed: int, checkpoint: Path | str, out: Path) -> None:
    """Serve the study's arrival trace under every policy and write a CSV.

    Beside it, ``<out stem>.environment.json`` says where and how it was measured. The last line
    printed is a JSON summary: latency, tokens/s and score of each policy.

    Args:
        study: the study; ``throughput.trace`` is the trace.
        seed: of the arrivals.
        checkpoint: of the MARS variant.
        out: the CSV file.
    """
    grid = study.throughput
    if grid is None or grid.trace is None:
        raise EvaluationError(f"study {study.study!r} has no throughput.trace section; add one")
    warn_if_busy()
    torch.set_num_threads(grid.threads)
    device = choose_device()
    source = open_checkpoint(checkpoint, study.training.dtype, device)
    settings = Decoding(
        decoder="mars",
        block_size=grid.block_size or study.variants[grid.variant].block_size,
        tau=grid.trace.tau_high,
        cache="cursor",
    )
    asked = Questions(study, grid, source, settings)
    assert source.load is not None
    model = source.load()
    mask_token_id(model, source.tokenizer)  # may add a row to the table: now, before any packing
    linears = choose_linears(model, grid.linears)
    decoder = make_decoder(model, source.tokenizer, settings, compile=grid.compile)
    columns = max(decoder.end(request) for request in asked.to_decode)
    with memory_for("throughput.trace.slots", grid.trace.slots):
        rate, rows, summary = _run(
            partial(Engine, decoder, grid.trace.slots, columns), asked, grid, seed
        )
    facts = versions(device, source.dtype) | {
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "linears": linears,
        "compile": grid.compile,
        "checkpoint": source.checkpoint,
        "decoding": settings.id,
        "trace": grid.trace.model_dump(mode="json"),
        "service_rate": round(rate, 4),
        "clock": "busy time: it jumps to the next arrival where nothing is in flight or waits",
        "warm_up": "requests that wait at once, dropped; then the service rate, of all of them",
        "order": "the policies one after another, each the whole trace at the same arrival times",
    }
    out = Path(out)
    write_atomically(out.with_suffix(".environment.json"), json.dumps(facts, indent=2) + "\n")
    write_atomically(out, as_csv(rows, COLUMNS))
    print(json.dumps(summary))


def _run(
    new_engine: Callable[[], Engine], asked: Questions, grid: Throughput, seed: int
) -> tuple[float, list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Requests/s of the engine, a row for each policy and request, and a line for each policy."""
    trace, to_decode = grid.trace, asked.to_decode
    assert trace is not None
    # where the model is compiled, a batch of any size is a program of its own
    warm_up = to_decode if grid.compile else to_decode[: trace.slots]
    service_rate(new_engine(), warm_up, trace.tau_high, Clock())
    rate = service_rate(new_engine(), to_decode, trace.tau_high, Clock())
    arrivals = draw_arrivals(trace, seed, rate)
    rows: list[dict[str, Any]] = []
    summary = {}
    for name, policy in policies(trace).items():
        engine, clock = new_engine(), Clock()
        served = serve(engine, to_decode, arrivals, policy, clock)
        busy = clock() - clock.jumped
        scores = asked.scores([one.generation for one in served])
        rows += [
            {"policy": name, "request": number, "doc_id": asked.name(number)} | _row(one, score)
            for number, (one, score) in enumerate(zip(served, scores, strict=True))
        ]
        summary[name] = summarise(served, scores, busy)
        print(f"{name}: {json.dumps(summary[name])}", file=sys.stderr, flush=True)
    return rate, rows, summary


class Questions(MarsLM):
    """A trace's requests, asked of a benchmark's documents, and what lm-eval gives the answers.

    Where there are more requests than documents, these are asked again, in the same order.
    """

    def __init__(self, study: Study, grid: Throughput, source: Any, settings: Decoding) -> None:
        super().__init__(source, max_new_tokens=grid.max_new_tokens, **settings.model_dump())
        assert grid.trace is not None
        count = sum(grid.trace.requests)
        self.loaded = load_study(study, [grid.benchmark])[grid.benchmark]
        self.readers = dict(self.loaded.readers)
        instances = requests(self, self.loaded, count)[:count]
        jobs = self._jobs(instances)
        if any(job.temperature for job in jobs):
            raise EvaluationError(
                f"throughput.benchmark: {grid.benchmark} samples its answers; choose one that "
                "decodes greedily"
            )
        self._asked = [jobs[number % len(jobs)] for number in range(count)]
        self._limit = min(count, len(jobs))
        self._said: Mapping[tuple[str, int], str] = {}

    @property
    def to_decode(self) -> list[Request]:
        """One a request of the trace."""
        return [job.request for job in self._asked]

    def name(self, number: int) -> str:
        """The document of a request, with its task where the benchmark has several."""
        job = self._asked[number]
        return str(job.doc_id) if len(self.loaded.tasks) == 1 else f"{job.task}/{job.doc_id}"

    def scores(self, generations: Sequence[Generation]) -> list[float]:
        """The primary metric of each answer, in 0 … 1.

        Several answers to one document are scored by as many runs of lm-eval over the documents.
        """
        rounds: list[dict[tuple[str, int], int]] = []
        for number, job in enumerate(self._asked):
            key = job.task, job.doc_id
            free = next((asked for asked in rounds if key not in asked), None)
            if free is None:
                rounds.append(free := {})
            free[key] = number
        found = [0.0] * len(generations)
        for asked in rounds:
            self._said = {
                key: self._record(self._asked[number], generations[number]).said
                for key, number in asked.items()
            }
            outcome = run_benchmark(self, self.loaded, self._limit)
            for key, number in asked.items():
                found[number] = outcome.scores[key]
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What was said already; nothing of a document that this round does not ask."""
        return [self._said.get((str(r.task_name), int(r.doc_id or 0)), "") for r in requests]


def _row(one: Served, score: float) -> dict[str, Any]:
    assert one.first_token is not None
    return {
        "phase": one.arrival.phase,
        "arrival": round(one.arrival.at, 6),
        "start": round(one.start, 6),
        "first_token": round(one.first_token, 6),
        "finish": round(one.finish, 6),
        "tokens": one.generation.tokens,
        "forwards": one.generation.forwards,
        "tau_start": round(one.tau_start, 6),
        "tau_end": round(one.tau_end, 6),
        "queue": one.queue,
        "score": score,
    }


def summarise(served: Sequence[Served], scores: Sequence[float], busy: float) -> dict[str, float]:
    """A policy in a line: latencies in seconds, tokens/s of busy time, score in per cent."""
    latencies = [one.latency for one in served]
    tokens = sum(one.generation.tokens for one in served)
    return {
        "median_latency_seconds": round(statistics.median(latencies), 4),
        "p95_latency_seconds": round(float(np.percentile(latencies, 95)), 4),
        "tokens_per_s": round(tokens / busy, 2),
        "tokens_per_forward": round(tokens / sum(one.generation.forwards for one in served), 4),
        "score": round(100 * statistics.fmean(scores), 2),
    }
