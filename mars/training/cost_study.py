"""The cost study: every method takes its turn at the same conversations, one CSV row a run.

Nothing else should run on the machine meanwhile. Batches are laid out before any clock starts; a
warm-up of each method is run and dropped; the methods take turns within a repeat, so that a slow
spell of the machine falls on all of them, and each repeat begins with another one. An interrupted
measurement goes on where it stopped.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars import models, streams
from mars.config import Drawn, Study, TrainingCost
from mars.data import Encoded, end_of_turn_id, load_examples
from mars.measurement import Partial, ceilings, memory_for, versions, warn_if_busy
from mars.training import cost
from mars.training.cost import Bench, Method, packed_batch, released_batch
from mars.training.objectives import make_objective
from mars.training.run import check_context, parameter_dtype, recompute_activations, setup_of

COLUMNS = (
    "study", "seed", "scale", "method", "variant", "block_size", "repeat", "conversations",
    "steps", "tokens", "columns", "seconds", "cpu_seconds", "tokens_per_s", "gflops",
    "gflops_per_s", "peak_gflops_per_s", "peak_memory_mb", "checkpoint",
)  # fmt: skip


class CostError(ValueError):
    """A cost study that cannot be run; the message is one line for the user."""


def measure_training_cost(study: Study, seed: int, checkpoint: Path | str, out: Path) -> None:
    """Measure the study's ``training_cost`` and write a CSV, one row per method and repeat.

    ``<out stem>.environment.json`` beside it says where and how it was measured. The last line
    printed is a JSON summary.

    Args:
        study: the study; its ``training_cost`` section says what is measured.
        seed: of conversations and phases.
        checkpoint: whose architecture is trained; a step costs the same whatever its weights.
        out: the CSV file.
    """
    asked, out = study.training_cost, Path(out)
    if asked is None:
        raise CostError(f"study {study.study!r} has no training_cost section; add one")
    warn_if_busy()
    torch.set_num_threads(asked.threads)
    folder = models.resolve_checkpoint(checkpoint)
    tokenizer = models.load_tokenizer(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.load_model(folder, parameter_dtype(study.training), device)
    methods = make_methods(study, asked, model, tokenizer, seed, folder)
    model.config.use_cache = False
    if study.training.activation_checkpointing:
        recompute_activations(model)
    dtype = models.choose_dtype(study.training.dtype, device)
    machine = versions(device, dtype) | {"threads": torch.get_num_threads()}
    identity = models.checkpoint_hash(folder)
    finished = Partial(out, _fingerprint(study, asked, seed, machine, identity))
    bench = Bench(model, study.training.max_grad_norm, dtype == "bfloat16")
    finished.begin_session()
    with memory_for("training_cost.conversations", asked.conversations):
        _measure(bench, methods, asked.repeats, finished)
    best = ceilings(finished, getattr(torch, dtype), device)
    named = {
        "study": study.study,
        "seed": seed,
        "scale": asked.scale,
        "peak_gflops_per_s": round(best.flops / 1e9, 2),
        "checkpoint": identity,
    }
    rows = [
        _row(bench, methods, method, repeat, finished, named)
        for repeat in range(asked.repeats)
        for method in methods
    ]
    manifest = _manifest(study, asked, machine, identity, finished.sessions)
    _write(out.with_suffix(".environment.json"), json.dumps(manifest, indent=2) + "\n")
    _write(out, _as_csv(rows))
    finished.remove()
    print(json.dumps(summary(rows)))


def make_methods(
    study: Study,
    asked: TrainingCost,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    seed: int,
    folder: Path,
) -> list[Method]:
    """AR SFT, each MARS variant, and both as released, on the same conversations.

    Those are the study's first, or drawn ones.

    Args:
        study: has the data and the row length.
        asked: what is measured.
        model, tokenizer: of the checkpoint in ``folder``.
        seed: of conversations and phases.
    """
    count = asked.steps * asked.conversations
    examples: Sequence[Encoded]
    if asked.drawn:
        examples = drawn(asked.drawn, count, tokenizer, seed)
    else:
        data = study.data.model_copy(update={"stage1_examples": count, "stage2_examples": 1})
        examples = load_examples(data, tokenizer, [1], seed)
    device = model.device
    chosen: list[list[tuple[Encoded, tuple[int, int]]]] = [
        [(examples[i], (0, i)) for i in range(at, at + asked.conversations)]
        for at in range(0, count, asked.conversations)
    ]

    def method(name: str, variant: str) -> Method:
        made = study.variants[variant]
        objective = make_objective(str(made.objective), setup_of(made, model, tokenizer, seed))
        if not asked.drawn:  # which nothing is learned from: positions cost the same anywhere
            check_context(model, objective, max(map(len, examples)), folder)
        batches = []
        for step in chosen:
            told, keys = zip(*step, strict=True)
            if name.endswith("released"):
                batch = released_batch(objective, told, keys)
            else:
                batch = packed_batch(objective, told, keys, study.training.row_length)
            batches.append(batch.to(device))
        return Method(name, variant, objective, tuple(batches))

    found = [method("ar_sft", asked.ar_variant)]
    found += [method("mars", variant) for variant in asked.variants]
    if asked.released:
        found += [method("ar_released", asked.ar_variant), method("released", asked.released)]
    return found


def drawn(shape: Drawn, count: int, tokenizer: Tokenizer, seed: int) -> list[Encoded]:
    """Conversations of one turn: random ids, a prompt, then a response with its end-of-turn."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.full((shape.tokens,), -1)
    turn[-shape.response :] = 0
    made = []
    for _ in range(count):
        ids = torch.randint(len(tokenizer), (shape.tokens,), generator=generator)
        ids[-1] = end_of_turn_id(tokenizer)
        made.append(Encoded(ids, turn >= 0, turn, ended=True))
    return made


# --------------------------------------------------------------------------- the loop


def _measure(bench: Bench, methods: Sequence[Method], repeats: int, finished: Partial) -> None:
    """Peak memory of every method, then their turns; what an earlier start finished is not redone.

    Each method is warmed up once a start, unless nothing is left to measure.
    """
    todo = [(repeat, m) for repeat in range(repeats) for m in in_turn(methods, repeat)]
    left = [m for repeat, m in todo if f"{m.label} {repeat}" not in finished]
    with tqdm(total=len(todo), unit="run", file=sys.stderr, smoothing=0.1) as progress:
        for method in methods if left else ():
            progress.set_description(f"warm-up, {method.label}")
            bench.run(method)
        for method in methods:
            key = f"{method.label} peak"
            if key not in finished:
                progress.set_description(f"memory, {method.label}")
                finished.keep(key, bench.peak_memory_mb(method))
        progress.initial = progress.n = len(todo) - len(left)
        progress.unpause()  # its time left is of the runs alone
        for repeat, method in todo:
            key = f"{method.label} {repeat}"
            if key in finished:
                continue
            progress.set_description(f"repeat {repeat + 1}, {method.label}")
            finished.keep(key, vars(bench.run(method)))
            progress.update()


def in_turn(methods: Sequence[Method], repeat: int) -> list[Method]:
    """The methods in the order of a repeat: each begins with another one."""
    turn = repeat % len(methods)
    return [*methods[turn:], *methods[:turn]]


def _row(
    bench: Bench,
    methods: Sequence[Method],
    method: Method,
    repeat: int,
    finished: Partial,
    named: dict[str, Any],
) -> dict[str, Any]:
    seconds = finished[f"{method.label} {repeat}"]["seconds"]
    done = [cost.work(bench.model, method, batch) for batch in method.batches]
    flops = sum(one.flops(bench.model) for one in done)
    tokens = sum(batch.counts.clean_tokens for batch in methods[0].batches)  # AR SFT's: no padding
    return {
        **named,
        "method": method.name,
        "variant": method.variant,
        "block_size": method.objective.setup.block_size,
        "repeat": repeat,
        "conversations": sum(batch.counts.examples for batch in method.batches),
        "steps": len(method.batches),
        "tokens": tokens,
        "columns": sum(one.columns for one in done),
        "seconds": round(seconds, 5),
        "cpu_seconds": round(finished[f"{method.label} {repeat}"]["cpu_seconds"], 5),
        "tokens_per_s": round(tokens / seconds, 2),
        "gflops": round(flops / 1e9, 4),
        "gflops_per_s": round(flops / seconds / 1e9, 4),
        "peak_memory_mb": round(finished[f"{method.label} peak"], 2),
    }


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each method, and of its ratios within a repeat: to AR SFT, laid out alike."""
    found: dict[str, Any] = {}
    for method, variant in dict.fromkeys((row["method"], row["variant"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["variant"]) == (method, variant)]
        like = "ar_released" if method.endswith("released") else "ar_sft"
        base = {row["repeat"]: row for row in rows if row["method"] == like}
        seconds = [row["seconds"] / base[row["repeat"]]["seconds"] for row in mine]
        memory = mine[0]["peak_memory_mb"]
        found[f"{method} {variant}"] = {
            "step_seconds": round(median(row["seconds"] / row["steps"] for row in mine), 5),
            f"step_vs_{like}": round(median(seconds), 3),
            f"memory_vs_{like}": round(memory / base[mine[0]["repeat"]]["peak_memory_mb"], 3),
            "gflops_per_s": round(median(row["gflops_per_s"] for row in mine), 2),
            "mfu": round(median(row["gflops_per_s"] / row["peak_gflops_per_s"] for row in mine), 4),
        }
    return {"scale": rows[0]["scale"], "runs": len(rows), "methods": found}


# --------------------------------------------------------------------------- where


def _settings(study: Study) -> dict[str, Any]:
    """The training settings that a step's cost depends on."""
    shaping = {"row_length", "max_grad_norm", "activation_checkpointing"}
    return study.training.model_dump(mode="json", include=shaping)


def _fingerprint(
    study: Study, asked: TrainingCost, seed: int, machine: dict[str, Any], checkpoint: str
) -> str:
    """Of everything that shapes the numbers: what differs in any of it is another measurement."""
    files = [*sorted(Path(__file__).parent.rglob("*.py")), Path(streams.__file__)]
    names = [asked.ar_variant, *asked.variants, *([asked.released] if asked.released else [])]
    parts = {
        "machine": machine,
        "asked": asked.model_dump(mode="json", exclude={"repeats"}),
        "training": _settings(study),
        "data": study.data.model_dump(mode="json", exclude={"stage1_examples", "stage2_examples"}),
        "variants": {name: study.variants[name].model_dump(mode="json") for name in names},
        "named": [study.study, seed, checkpoint],
        "code": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _manifest(
    study: Study,
    asked: TrainingCost,
    machine: dict[str, Any],
    checkpoint: str,
    sessions: list[Any],
) -> dict[str, Any]:
    """Where and how it was measured, and of what."""
    return machine | {
        "load_average": list(os.getloadavg()),
        "checkpoint": checkpoint,
        "training_cost": asked.model_dump(mode="json"),
        "training": _settings(study),
        "timed": "forward, backward, gradient clipping, AdamW; not the layout of a batch",
        "order": "methods take turns within each repeat, each repeat begins with another",
        "warm_up": "a run of each method, dropped",
        "memory": "tensors at their most in a step: weights, gradients, AdamW's state, activations",
        "flops": "computed, a backward pass taken as twice its forward",
        "peak_gflops_per_s": "of a large matrix product in this dtype, measured here",
        "interruptions": len(sessions) - 1,
        "sessions": {str(number): session for number, session in enumerate(sessions)},
    }


# --------------------------------------------------------------------------- on disk


def _write(file: Path, text: str) -> None:
    """Whole, or not at all."""
    new = file.with_name(f".{file.name}.new")
    with models.writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        os.replace(new, file)
