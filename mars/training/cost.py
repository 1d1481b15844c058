"""What a training step costs: AR SFT, MARS as released (2L, dense) and ours, on the same batches.

Steps take turns, so that a busy machine slows all alike; medians are compared. The step is the
whole one: forward, backward, gradient clipping, AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from mars import streams
from mars.data import Encoded
from mars.streams import IGNORE, Layout, dense_mask
from mars.training.attention import packed_attention
from mars.training.objectives import Batch, Objective, make_objective
from mars.training.objectives.base import Key
from mars.training.objectives.mars import Mars, whole_blocks_from_start
from mars.training.packing import pack

Run = Callable[[], Tensor]
"""Computes the loss of one batch; its backward pass is left to the caller."""


@dataclass(frozen=True)
class Cost:
    """What one kind of step costs.

    Attributes:
        seconds: of each repeat, by the clock.
        cpu_seconds: of each repeat, of all threads: steadier where others use the machine.
        peak_memory_mb: weights, gradients, optimizer state and activations at their most.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    peak_memory_mb: float

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)


def released_batch(objective: Mars, examples: Sequence[Encoded], keys: Sequence[Key]) -> Batch:
    """The untrimmed 2L batch: both streams whole, a row for each example.

    The layout of the released code, for either alignment, so that it does the objective's work.
    """
    rows = [_untrimmed(objective, e, key) for e, key in zip(examples, keys, strict=True)]
    return objective.batch([[row] for row in rows], keys)


def _untrimmed(objective: Mars, example: Encoded, key: Key) -> Layout:
    s = objective.setup
    if s.alignment == "stream":
        example = whole_blocks_from_start(example, s.block_size, s.end_id)
        return streams.stream_layout(
            example.ids, example.turn, s.block_size, s.mask_id, trimmed=False
        )
    turns = int(example.turn.max()) + 1
    phases = [streams.block_phase(s.seed, *key, turn, s.block_size) for turn in range(turns)]
    return streams.mars_layout_full(example.ids, example.turn, s.block_size, phases, s.mask_id)


def released_loss(model: PreTrainedModel, objective: Objective, batch: Batch) -> Tensor:
    """The loss sum with a dense mask and logits of every column."""
    layout = batch.layout
    logits = model(
        input_ids=layout.input_ids,
        attention_mask=dense_mask(objective.predicate, layout),
        position_ids=layout.position,
        use_cache=False,
    ).logits.flatten(0, 1)

    def summed(label: Tensor) -> Tensor:
        return cross_entropy(logits, label.flatten(), ignore_index=IGNORE, reduction="sum")

    loss = summed(layout.mask_label)
    if objective.wants_ar:
        loss = loss + objective.setup.ar_weight * summed(layout.ar_label)
    return loss


def packed_batch(
    objective: Objective, examples: Sequence[Encoded], keys: Sequence[Key], row_length: int
) -> Batch:
    """All examples in one forward, packed as in training."""
    import numpy as np

    layouts = [objective.row(e, key) for e, key in zip(examples, keys, strict=True)]
    widths = [layout.shape[1] for layout in layouts]
    rows = pack(widths, row_length, np.random.default_rng(objective.setup.seed))
    order = [i for row in rows for i in row]
    return objective.batch([[layouts[i] for i in row] for row in rows], [keys[i] for i in order])


def steps(
    model: PreTrainedModel,
    mars: Mars,
    examples: Sequence[Encoded],
    keys: Sequence[Key],
    row_length: int = 512,
) -> dict[str, Run]:
    """``ar_sft``, ``released`` and ``ours`` on the same examples; each returns its mean loss."""
    sft = make_objective("ar_sft", replace(mars.setup, block_size=1, alignment="decoder"))
    ar = packed_batch(sft, examples, keys, row_length)
    ours = packed_batch(mars, examples, keys, row_length)
    whole = released_batch(mars, examples, keys)

    def fast(objective: Objective, batch: Batch) -> Tensor:
        with packed_attention(model):
            return objective.loss(model, batch).total(objective.setup.ar_weight)

    return {
        "ar_sft": lambda: fast(sft, ar) / ar.counts.response_tokens,
        "released": lambda: released_loss(model, mars, whole) / whole.counts.response_tokens,
        "ours": lambda: fast(mars, ours) / ours.counts.response_tokens,
    }


def measure(model: PreTrainedModel, runs: Mapping[str, Run], repeats: int = 5) -> dict[str, Cost]:
    """Take turns through ``runs``, after one warm-up each; the model is trained on the way.

    The learning rate is 0, so no step sees another's weights.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)
    clocks: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    peaks = {name: _peak_memory(model, optimizer, run) for name, run in runs.items()}
    for _ in range(repeats):
        for name, run in runs.items():
            _wait(model)
            before = time.perf_counter(), time.process_time()
            _step(model, optimizer, run)
            _wait(model)
            after = time.perf_counter(), time.process_time()
            clocks[name].append((after[0] - before[0], after[1] - before[1]))
    return {
        name: Cost(tuple(t for t, _ in taken), tuple(c for _, c in taken), peaks[name])
        for name, taken in clocks.items()
    }


def _step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, run: Run) -> None:
    optimizer.zero_grad(set_to_none=True)
    run().backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _wait(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def _peak_memory(model: PreTrainedModel, optimizer: torch.optim.Optimizer, run: Run) -> float:
    """MiB, of a second step (the first makes the optimizer's state)."""
    _step(model, optimizer, run)
    optimizer.zero_grad(set_to_none=True)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        _step(model, optimizer, run)
        return torch.cuda.max_memory_allocated() / 2**20
    held = [*model.parameters(), *model.buffers()]
    held += [v for state in optimizer.state.values() for v in state.values()]
    static = sum(x.nbytes for x in held if isinstance(x, Tensor))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        _step(model, optimizer, run)
    return (static + _most_allocated(profile)) / 2**20


def _most_allocated(profile: Any) -> int:
    """The most bytes that were held at once, of those that a profiled region allocated."""
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: int(e.start_ns())):
        held += int(event.nbytes())
        most = max(most, held)
    return most
