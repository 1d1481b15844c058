"""MADE-UP results, laid out exactly as docs/architecture.md says. Nothing here was measured.

``make_results(folder, study)`` writes a whole results folder from a made-up law: skill rises with
scale and training, falls with the threshold, tokens per forward rise with B. Records agree with
``evaluation.csv``: scores are recomputed from them.
"""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path

import numpy as np

from mars.config import Decoding, Study, dump_study

from .made_up_studies import ROOT, confidences, embedded, reduced, text

__all__ = ["ROOT", "embedded", "make_results", "reduced"]

SUBTASKS = {"toy_bbh": ("boolean", "objects", "sorting")}
SKILL = {"toy_ifeval": 62, "toy_bbh": 55, "toy_mmlu_pro": 45, "toy_gpqa": 58, "toy_gsm8k": 60}


def rng_of(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def skill(study: Study, scale: str, variant: str, benchmark: str, d: Decoding) -> float:
    """The made-up true score, per cent."""
    made = study.variants[variant]
    value = SKILL.get(benchmark, 50.0) + 8.0 * list(study.scales).index(scale)
    if made.objective is None:
        value -= 15
    if made.objective == "block_diffusion":
        value -= 12 if benchmark in ("toy_bbh", "toy_mmlu_pro") else 3
    if made.objective == "mars":
        value += 1 if made.ar_weight else -1.5 * np.log2(made.block_size)
    return value - 8 * (1 - d.tau) ** 1.5


def tokens_per_forward(benchmark: str, d: Decoding) -> float:
    if d.decoder == "jacobi":
        return 1.08
    if d.decoder != "mars" or d.tau == 1.0:
        return 1.0
    ease = {"toy_ifeval": 0.4, "toy_bbh": 1.2, "toy_humaneval": 0.8}.get(benchmark, 0.6)
    return 1 + ease * (0.8 + 1.2 * (1 - d.tau)) * (1 + 0.08 * np.log2(d.block_size))


def write_records(path: Path, key: tuple, truth: float, pace: float, documents: int) -> dict:
    """One JSONL file of made-up records; returns the sums that evaluation.csv reports."""
    rng = rng_of("documents", *key[-1:])  # documents are the same for every model
    ease = rng.random(documents)
    length = rng.integers(12, 40, documents)
    noise = rng_of("noise", *key)
    scores = (0.85 * ease + 0.15 * noise.random(documents) < truth / 100).astype(float)
    subtasks = SUBTASKS.get(key[-1], (key[-1],))
    rows = []
    for i in range(documents):
        # forwards as real decoding has them: an accepted count each, summing to the tokens
        accepted: list[int] = []
        while sum(accepted) < length[i]:
            step = 1 if pace == 1.0 else 1 + int(noise.poisson(pace - 1))
            accepted.append(min(step, int(length[i]) - sum(accepted)))
        rows.append(
            {
                "fingerprint": f"{zlib.crc32(repr((key, i)).encode()):08x}",
                "benchmark": key[-1],
                "task": subtasks[i % len(subtasks)],
                "doc_id": i // len(subtasks),
                "prompt_hash": f"{i:08x}",
                "output": text(int(length[i]) - 1, i, bool(scores[i])),
                "tokens": int(length[i]),
                "forwards": len(accepted),
                "accepted": accepted,
                "finish": "end_of_turn",
                "truncated": False,
                "score": float(scores[i]),
                "seconds": 0.01,
                "confidence": confidences(noise, int(length[i])),
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    by_task = [[r["score"] for r in rows if r["task"] == t] for t in subtasks]
    tokens, forwards = sum(r["tokens"] for r in rows), sum(r["forwards"] for r in rows)
    return {
        "score": 100 * float(np.mean([np.mean(s) for s in by_task])),
        "documents": documents,
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": tokens / forwards,
        "truncated": 0.0,
        "seconds": 0.01 * documents,
    }


def write_evaluation(
    study: Study, results: Path, seed: int, scale: str, variant: str, documents: int
) -> None:
    folder = results / f"seed{seed}" / scale / variant
    rows = []
    for benchmark, setting in study.evaluation.benchmarks.items():
        for d in study.decodings(variant, benchmark):
            path = folder / "evaluation" / benchmark / f"{d.id}.jsonl"
            truth = skill(study, scale, variant, benchmark, d)
            key = (seed, scale, variant, d.id, benchmark)
            sums = write_records(path, key, truth, tokens_per_forward(benchmark, d), documents)
            rows.append(
                {
                    "study": study.study,
                    "seed": seed,
                    "scale": scale,
                    "variant": variant,
                    "benchmark": benchmark,
                    "decoder": d.decoder,
                    "block_size": d.block_size,
                    "tau": d.tau,
                    "rule": d.rule,
                    "cache": d.cache,
                    "metric": setting.metric,
                    "metrics": json.dumps({setting.metric: sums["score"] / 100}),
                    "checkpoint": "0" * 12,
                    "records": path.relative_to(results).as_posix(),
                    **sums,
                }
            )
    write_csv(folder / "evaluation.csv", rows)


def write_training(study: Study, results: Path, seed: int, scale: str, variant: str) -> None:
    made = study.variants[variant]
    folder = results / f"seed{seed}" / scale / variant
    examples = 12_000 * len(made.stages)
    noise = rng_of("training", seed, scale, variant)
    two = made.objective != "ar_sft"
    rows = []
    for step in range(5, examples // 64, 5):
        ar = 0.4 + 3 * np.exp(-step / 40) + 0.03 * noise.standard_normal()
        mask = ar + 0.4 if two else None
        rows.append(
            {
                "step": step,
                "epoch": step * 64 / examples,
                "examples": step * 64,
                "learning_rate": 1e-3,
                "loss": ar + (mask or 0),
                "loss_ar": ar,
                "loss_mask": mask,
                "grad_norm": 1.0,
                "seconds": 0.2 * step,
            }
        )
    write_csv(folder / "training.csv", rows)
    response = 30 * examples
    fraction = (1 + (made.block_size - 1) / 30) / made.block_size
    fraction = 1.0 if not two else (made.ar_weight + fraction) / (1 + made.ar_weight)
    if made.alignment == "stream":
        fraction = 0.0
    cost = {
        "examples": examples,
        "clean_tokens": 70 * examples,
        "masked_tokens": 28 * examples if two else 0,
        "response_tokens": response,
        "ar_signal_fraction": fraction + 0.002 * two,
        "flops": 6e5 * 98 * examples,
        "seconds": examples / 64 * (0.45 if two else 0.3),
        "peak_memory_mb": 900 if two else 700,
    }
    (folder / "training.json").write_text(json.dumps(cost))


def write_throughput(study: Study, results: Path, seed: int) -> None:
    grid = study.throughput
    assert grid is not None
    autoregressive = [
        ("generate", "dynamic", None, "", 0.8),
        ("generate_static", "static", None, "", 0.9),
        ("ar", "cursor", None, "", 1.0),
    ]
    large = max((c for c in grid.cache_blocks if c <= 32), default=32)
    replayed = [
        ("mars", "none", None, "B", 0.7),
        ("mars", "block", large, "B", 1.3),
        ("mars", "cursor", None, "B", 1.6),
        ("mars", "cursor", None, "auto", 1.7),
        ("released", "block", large, "B", 0.6),
    ]
    drafting = [
        replayed[0],
        *(("mars", "block", c, "B", 1.0 + 0.1 * i) for i, c in enumerate(grid.cache_blocks)),
        *replayed[2:],
    ]
    rows = []

    def add(kind: tuple, batch: int, rate: float, **more: object) -> None:
        method, cache, block, draft = kind
        for repeat in range(grid.repeats):
            seconds = 10 / rate / batch**0.7 * (1 + 0.02 * repeat)
            tokens = 64 * 30
            row = {
                "study": study.study,
                "seed": seed,
                "scale": grid.scale,
                "benchmark": grid.benchmark,
                "part": "grid",
                "acceptance": "model",
                "batch_size": batch,
                "method": method,
                "cache": cache,
                "cache_block": block,
                "block_size": 4 if draft else 1,
                "tau": None,
                "draft": draft,
                "scheduling": "static",
                "linears": "stock",
                "repeat": repeat,
                "prompts": grid.prompts_at(batch),
                "max_new_tokens": grid.max_new_tokens,
                "seconds": seconds,
                "first_token_seconds": 0.01 * batch,
                "prefill_seconds": 0.01 * batch,
                "decode_tokens_per_s": (tokens - 64) / (seconds - 0.01 * batch),
                "tokens": tokens,
                "tokens_per_s": tokens / seconds,
                "forwards": tokens // 2 if draft else tokens,
                "tokens_per_forward": 2.0 if draft else 1.0,
                "model_forwards": tokens // batch,
                "model_tokens": tokens * (4 if draft else 1),
                "gflops_per_s": 6.0 * rate,
                "gbytes_per_s": 1.5 * rate,
                "peak_gflops_per_s": 60.0,
                "peak_gbytes_per_s": 12.0,
                "peak_memory_mb": 500 + batch,
                "checkpoint": "0" * 12,
            }
            rows.append(row | more)

    for batch in grid.batch_sizes:
        for *kind, rate in autoregressive if grid.thresholds else []:
            add(tuple(kind), batch, rate)
        for tau in grid.thresholds:
            for *kind, rate in drafting:
                add(tuple(kind), batch, rate, tau=tau)
        for *kind, rate in [*autoregressive, *replayed] if grid.replay else []:
            add(tuple(kind), batch, rate, tau=None, acceptance="replayed")
    if grid.continuous:
        for *kind, rate in (autoregressive[2], replayed[2]):
            for scheduling, gain in (("static", 1.0), ("continuous", 1.4)):
                how = {"part": "batching", "acceptance": "replayed", "scheduling": scheduling}
                add(tuple(kind), grid.continuous.slots, rate * gain, tau=None, **how)
    folder = results / f"seed{seed}"
    write_csv(folder / "throughput.csv", rows)
    profiles = [
        {
            "study": study.study,
            "seed": seed,
            "acceptance": "replayed",
            "batch_size": batch,
            "method": method,
            "cache": cache,
            "draft": draft,
            "model_forwards": 100,
            "model_tokens": 100 * batch * (5 if draft else 1),
            "ms": 2.0 if draft else 1.0,
            "linear_ms": 0.8 if draft else 0.4,
            "attention_ms": 0.3,
            "other_ms": 0.2,
        }
        for batch in grid.batch_sizes
        for method, cache, draft in (("ar", "cursor", ""), ("mars", "cursor", "B"))
    ]
    write_csv(folder / "throughput.profile.csv", profiles)
    environment = {"device": "made-up CPU", "threads": 1, "load_average": [0.5, 0.4, 0.3]}
    (folder / "throughput.environment.json").write_text(json.dumps(environment))


def write_arrivals(study: Study, results: Path, seed: int) -> None:
    """A made-up queue: one request after the other, each shorter the lower τ is."""
    grid = study.throughput
    assert grid is not None
    assert grid.trace is not None
    trace = grid.trace
    rng = rng_of("arrivals", seed)
    loads = np.repeat(trace.loads, trace.requests)
    arrivals = np.cumsum(rng.exponential(1 / loads))
    policies = [(f"tau {tau:g}", tau) for tau in trace.thresholds]
    rows = []
    for policy, fixed in [*policies, ("controller", None)]:
        free = 0.0
        finishes: list[float] = []
        for i, arrival in enumerate(arrivals):
            queue = sum(f > arrival for f in finishes)
            part = min(1.0, queue / trace.patience)
            tau = fixed or trace.tau_high + part * (trace.tau_low - trace.tau_high)
            start = max(arrival, free)
            free = start + 0.4 + 0.6 * tau
            finishes.append(free)
            rows.append(
                {
                    "policy": policy,
                    "request": i,
                    "doc_id": i % grid.prompts,
                    "phase": int(np.searchsorted(np.cumsum(trace.requests), i, side="right")),
                    "arrival": arrival,
                    "start": start,
                    "first_token": start + 0.1,
                    "finish": free,
                    "tokens": 30,
                    "forwards": round(30 / (1 + 2 * (1 - tau))),
                    "tau_start": tau,
                    "tau_end": tau,
                    "queue": queue,
                    "score": float(rng_of("score", i % grid.prompts).random() < 0.3 + 0.3 * tau),
                }
            )
    write_csv(results / f"seed{seed}" / "arrivals.csv", rows)


def write_training_cost(study: Study, results: Path, seed: int) -> None:
    """Made-up steps: a repeat is slow for all methods alike, and so changes no ratio."""
    cost = study.training_cost
    assert cost is not None
    methods = [("ar_sft", cost.ar_variant, 1.0, 100.0)]
    methods += [("mars", name, 1.5, 140.0) for name in cost.variants]
    if cost.released:
        methods.append(("ar_released", cost.ar_variant, 1.2, 120.0))
        methods.append(("released", cost.released, 2.5, 260.0))
    rows = []
    for repeat in range(cost.repeats):
        for method, variant, slower, memory in methods:
            seconds = 0.2 * slower * cost.steps * (1 + 0.3 * repeat)
            tokens = 70 * cost.conversations * cost.steps
            rows.append(
                {
                    "study": study.study,
                    "seed": seed,
                    "scale": cost.scale,
                    "method": method,
                    "variant": variant,
                    "block_size": study.variants[variant].block_size,
                    "repeat": repeat,
                    "conversations": cost.conversations * cost.steps,
                    "steps": cost.steps,
                    "tokens": tokens,
                    "columns": int(tokens * slower),
                    "seconds": seconds,
                    "tokens_per_s": tokens / seconds,
                    "gflops": 4.0 * slower,
                    "gflops_per_s": 4.0 * slower / seconds,
                    "peak_gflops_per_s": 60.0,
                    "peak_memory_mb": memory,
                }
            )
    folder = results / f"seed{seed}"
    write_csv(folder / "training_cost.csv", rows)
    environment = {"device": "made-up CPU", "memory": "made-up tensors"}
    (folder / "training_cost.environment.json").write_text(json.dumps(environment))


def write_csv(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_results(results: Path, study: Study, documents: int = 60) -> Path:
    """A finished study's results folder, made up."""
    for seed in study.seeds:
        for scale, variant in study.runs():
            if variant != "base":
                (results / f"seed{seed}" / scale / variant).mkdir(parents=True)
                write_training(study, results, seed, scale, variant)
            write_evaluation(study, results, seed, scale, variant, documents)
        if study.throughput:
            write_throughput(study, results, seed)
            if study.throughput.trace:
                write_arrivals(study, results, seed)
        if study.training_cost:
            write_training_cost(study, results, seed)
    (results / "config.yaml").write_text(dump_study(study))
    (results / "environment.json").write_text(json.dumps({"note": "made up", "cores": 2}))
    return results
