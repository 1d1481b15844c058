"""The wall-clock grid (Table 5): every method on the same prompts, repeats interleaved.

Nothing else should run on the machine meanwhile. Prompts are tokenised before any clock starts;
one warm-up a method and batch size is run and dropped; the methods take turns within a repeat, so
that a slow spell of the machine falls on all of them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mars.config import Decoding, Study, Throughput
from mars.decoding.contract import Request
from mars.decoding.make import make_decoder
from mars.evaluation.benchmarks import load_benchmarks, prompts
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import write_atomically
from mars.evaluation.source import EvaluationError, Source, choose_device, open_checkpoint

COLUMNS = (
    "study", "seed", "scale", "benchmark", "batch_size", "method", "cache", "cache_block",
    "block_size", "tau", "repeat", "prompts", "max_new_tokens", "seconds", "tokens",
    "tokens_per_s", "forwards", "tokens_per_forward", "first_token_seconds", "peak_memory_mb",
    "checkpoint",
)  # fmt: skip

Counts = tuple[int, int]
"""Kept tokens and forwards, summed over the rows of a batch."""


@dataclass(frozen=True)
class Method:
    """One line of the grid.

    Attributes:
        name: ``generate`` (of transformers), ``ar`` or ``mars``.
        settings: the decoding settings; of ``generate`` only what it has in common.
        checkpoint: hash of the checkpoint.
        run: decodes one batch of requests.
    """

    name: str
    settings: Decoding
    checkpoint: str
    run: Callable[[Sequence[Request]], Counts]

    @property
    def label(self) -> str:
        """A short name that no other method of the grid has."""
        block = f"{self.settings.cache_block}" if self.settings.cache_block else ""
        return self.name if self.name == "generate" else f"{self.name}_{self.settings.cache}{block}"


def measure(
    study: Study, seed: int, checkpoint: Path | str, ar_checkpoint: Path | str, out: Path
) -> None:
    """Measure the study's wall-clock grid and write a CSV, one row per run of a method.

    Beside it, ``<out stem>.environment.json`` says where it was measured. The last line printed
    is a JSON summary: the median seconds of each method at each batch size.

    Args:
        study: the study; its ``throughput`` section is the grid.
        seed: named in the rows.
        checkpoint: of the MARS variant.
        ar_checkpoint: of the autoregressive variant it is compared with.
        out: the CSV file.
    """
    import torch

    grid = study.throughput
    if grid is None:
        raise EvaluationError(f"study {study.study!r} has no throughput section; add one")
    device = choose_device()
    ours = open_checkpoint(checkpoint, study.training.dtype, device)
    theirs = open_checkpoint(ar_checkpoint, study.training.dtype, device)
    requests = _requests(study, grid, ours)
    torch.set_num_threads(grid.threads)
    methods = _methods(study, grid, ours, theirs)
    rows = []
    for size in grid.batch_sizes:
        batches = [requests[i : i + size] for i in range(0, len(requests), size)]
        for method in methods:
            _warm_up(method, batches)
        for repeat in range(grid.repeats):
            for method in methods:
                measured = _time(method, batches, device)
                rows.append(
                    {
                        "study": study.study,
                        "seed": seed,
                        "scale": grid.scale,
                        "benchmark": grid.benchmark,
                        "batch_size": size,
                        "method": method.name,
                        "cache": method.settings.cache,
                        "cache_block": method.settings.cache_block or "",
                        "block_size": method.settings.block_size,
                        "tau": method.settings.tau,
                        "repeat": repeat,
                        "prompts": len(requests),
                        "max_new_tokens": grid.max_new_tokens,
                        "checkpoint": method.checkpoint,
                    }
                    | measured
                )
                _report(size, repeat, method, measured)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    out = Path(out)
    environment = _environment(device, grid, ours, theirs)
    write_atomically(out.with_suffix(".environment.json"), json.dumps(environment, indent=2) + "\n")
    write_atomically(out, text.getvalue())
    print(json.dumps(_summary(rows)))


def _requests(study: Study, grid: Throughput, source: Source) -> list[Request]:
    """The benchmark's first prompts, as ids."""
    benchmark = study.evaluation.benchmarks[grid.benchmark]
    loaded = load_benchmarks({grid.benchmark: benchmark})[grid.benchmark]
    lm = MarsLM(source)
    texts = prompts(lm, loaded, grid.prompts)[: grid.prompts]
    if len(texts) < grid.prompts:
        raise EvaluationError(
            f"throughput.prompts is {grid.prompts}, but {grid.benchmark} has {len(texts)} "
            f"documents; set at most {len(texts)}"
        )
    ids = [tuple(lm.tok_encode(text)) for text in texts]
    return [Request(prompt_ids=prompt, max_new_tokens=grid.max_new_tokens) for prompt in ids]


def _methods(study: Study, grid: Throughput, ours: Source, theirs: Source) -> list[Method]:
    """transformers' generate, the fair AR decoder, and MARS with each cache."""
    assert ours.load is not None
    assert theirs.load is not None
    size = study.variants[grid.variant].block_size
    plain = Decoding(decoder="ar", cache="cursor")
    drafts = [Decoding(decoder="mars", block_size=size, tau=grid.tau, cache="none")]
    drafts += [
        Decoding(decoder="mars", block_size=size, tau=grid.tau, cache="block", cache_block=width)
        for width in grid.cache_blocks
    ]
    drafts += [Decoding(decoder="mars", block_size=size, tau=grid.tau, cache="cursor")]
    generate = partial(_generate, theirs.load(), theirs.tokenizer)
    methods = [Method("generate", plain, theirs.checkpoint, generate)]
    for name, settings, source in [("ar", plain, theirs), *(("mars", d, ours) for d in drafts)]:
        assert source.load is not None
        decoder = make_decoder(source.load(), source.tokenizer, settings)
        methods.append(Method(name, settings, source.checkpoint, partial(_decode, decoder)))
    return methods


def _decode(decoder: Any, batch: Sequence[Request]) -> Counts:
    made = decoder.generate(batch)
    return sum(len(g.ids) for g in made), sum(len(g.accepted) for g in made)


def _generate(model: Any, tokenizer: Any, batch: Sequence[Request]) -> Counts:
    """Greedy ``generate`` with its own cache: what the paper calls AR with KV cache."""
    import torch

    width = max(len(request.prompt_ids) for request in batch)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = torch.full((len(batch), width), pad)
    seen = torch.zeros_like(ids)
    for row, request in enumerate(batch):
        ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        seen[row, width - len(request.prompt_ids) :] = 1
    end = tokenizer.eos_token_id
    made = model.generate(
        ids.to(model.device),
        attention_mask=seen.to(model.device),
        max_new_tokens=batch[0].max_new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=pad,
        eos_token_id=end,
    )[:, width:]
    tokens = 0
    for row in made.tolist():
        tokens += row.index(end) + 1 if end in row else len(row)
    return tokens, tokens


def _clock(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def _warm_up(method: Method, batches: Sequence[Sequence[Request]]) -> None:
    """One batch, not timed: allocations, kernels and caches of the first call."""
    method.run(batches[0])


def _time(method: Method, batches: Sequence[Sequence[Request]], device: str) -> dict[str, Any]:
    """Decode all batches under the clock."""
    first = [_only_one_token(request) for request in batches[0]]
    start = _clock(device)
    method.run(first)
    first_token = _clock(device) - start
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    tokens = forwards = 0
    start = _clock(device)
    for batch in batches:
        kept, steps = method.run(batch)
        tokens, forwards = tokens + kept, forwards + steps
    seconds = _clock(device) - start
    return {
        "seconds": round(seconds, 4),
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 2),
        "forwards": forwards,
        "tokens_per_forward": round(tokens / forwards, 4),
        "first_token_seconds": round(first_token, 4),
        "peak_memory_mb": round(_peak_memory_mb(device), 1),
    }


def _only_one_token(request: Request) -> Request:
    return Request(prompt_ids=request.prompt_ids, max_new_tokens=1)


def _peak_memory_mb(device: str) -> float:
    """On a GPU of this run; on a CPU of the process so far, which holds every method's model."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _report(size: int, repeat: int, method: Method, measured: dict[str, Any]) -> None:
    print(
        f"batch {size}, repeat {repeat}, {method.label}: {measured['seconds']:.2f} s, "
        f"{measured['tokens_per_s']:.0f} tokens/s, "
        f"{measured['tokens_per_forward']:.2f} tokens per forward",
        file=sys.stderr,
        flush=True,
    )


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median seconds and tokens/s of each method at each batch size."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        name = f"{row['method']}:{row['cache']}{row['cache_block']}"
        runs.setdefault(str(row["batch_size"]), {}).setdefault(name, []).append(row)
    return {
        size: {
            name: {
                key: round(statistics.median(run[key] for run in done), 4)
                for key in ("seconds", "tokens_per_s", "tokens_per_forward")
            }
            for name, done in methods.items()
        }
        for size, methods in runs.items()
    }


def _environment(device: str, grid: Throughput, ours: Source, theirs: Source) -> dict[str, Any]:
    """Where the grid was measured, and of what."""
    import torch
    import transformers

    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).is_file():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "dtype": ours.dtype,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "checkpoints": {"mars": ours.checkpoint, "ar": theirs.checkpoint},
        "grid": grid.model_dump(mode="json"),
        "warm_up": "one batch a method and batch size, dropped",
        "order": "methods take turns within each repeat",
    }
