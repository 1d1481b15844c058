"""What a training step costs: AR SFT, MARS, and MARS as released (2L, dense), measured alike.

A step is the whole one: forward, backward, gradient clipping, AdamW. All of its conversations go
through one forward, whatever the layout, so that memory is compared at equal conversations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from mars import streams
from mars.data import Encoded
from mars.measurement import clock, most_allocated
from mars.streams import IGNORE, Layout, dense_mask
from mars.training import attention
from mars.training.attention import Documents, packed_attention, packs, shared_heads
from mars.training.objectives import Batch, Objective
from mars.training.objectives.base import Key
from mars.training.objectives.mars import Mars, whole_blocks_from_start
from mars.training.packing import pack

# --------------------------------------------------------------------------- layouts


def packed_batch(
    objective: Objective, examples: Sequence[Encoded], keys: Sequence[Key], row_length: int
) -> Batch:
    """All examples in one forward, packed as in training."""
    layouts = [objective.row(e, key) for e, key in zip(examples, keys, strict=True)]
    widths = [layout.shape[1] for layout in layouts]
    rows = pack(widths, row_length, np.random.default_rng(objective.setup.seed))
    order = [i for row in rows for i in row]
    return objective.batch([[layouts[i] for i in row] for row in rows], [keys[i] for i in order])


def released_batch(objective: Objective, examples: Sequence[Encoded], keys: Sequence[Key]) -> Batch:
    """A row for each example, padded to the longest, as in the released code.

    Of MARS, for either alignment, both streams whole (2L), so that it does the objective's work.
    """
    rows = [
        _untrimmed(objective, e, key) if isinstance(objective, Mars) else objective.row(e, key)
        for e, key in zip(examples, keys, strict=True)
    ]
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
    """The loss sum with logits of every column, and a dense mask where there are two streams.

    One stream is causal, and padding stands behind whatever could see it: it needs no mask.
    """
    layout = batch.layout
    streams = bool(layout.masked.any())
    logits = model(
        input_ids=layout.input_ids,
        attention_mask=dense_mask(objective.predicate, layout) if streams else None,
        position_ids=layout.position,
        use_cache=False,
    ).logits.flatten(0, 1)

    def summed(label: Tensor) -> Tensor:
        return cross_entropy(logits, label.flatten(), ignore_index=IGNORE, reduction="sum")

    loss = summed(layout.mask_label)
    if objective.wants_ar:
        loss = loss + objective.setup.ar_weight * summed(layout.ar_label)
    return loss


# --------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Method:
    """One way to train on some conversations.

    Attributes:
        name: ar_sft, mars; ar_released, released: those two as in the released code.
        variant: of the study, whose objective it is.
        batches: one a step.
    """

    name: str
    variant: str
    objective: Objective
    batches: tuple[Batch, ...]

    @property
    def label(self) -> str:
        """As in progress and summary."""
        return f"{self.variant} as released" if self.as_released else self.variant

    @property
    def as_released(self) -> bool:
        """Whether it is laid out as in the released code."""
        return self.name.endswith("released")

    def attending(self, model: PreTrainedModel) -> AbstractContextManager[Any]:
        """Have a model attend as this method does, which is as training does on its device."""
        packed = packs(model.device) and not self.as_released
        return packed_attention(model) if packed else nullcontext()

    def loss(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """The mean over the response tokens, of a model that attends so."""
        if self.as_released:
            total = released_loss(model, self.objective, batch)
        else:
            total = self.objective.loss(model, batch).total(self.objective.setup.ar_weight)
        return total / batch.counts.response_tokens


@dataclass(frozen=True)
class Work:
    """What a forward computes.

    Attributes:
        columns: tokens and masks, padding included.
        read: columns that go through the LM head.
        pairs: of a query and a key, those that a mask hides included where they are computed.
    """

    columns: int
    read: int
    pairs: int

    def flops(self, model: PreTrainedModel) -> float:
        """Of a step, its backward pass taken as twice its forward.

        6 a weight of the body and column, 6 · V · H a column that is read, and 12 · heads · head
        size a pair and layer. Norms, softmax, loss and optimizer are left out, and so is what a
        backward pass computes again.
        """
        shape: Any = model.config
        heads: int = shape.num_attention_heads
        size = getattr(shape, "head_dim", None) or shape.hidden_size // heads
        linear = (m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear))
        body = sum(module.weight.numel() for module in linear)
        head = model.get_output_embeddings().weight.numel()
        attention = 12 * heads * size * shape.num_hidden_layers * self.pairs
        return 6.0 * (body * self.columns + head * self.read) + attention


def work(model: PreTrainedModel, method: Method, batch: Batch) -> Work:
    """What the forward of a batch computes."""
    layout = batch.layout
    rows, width = layout.shape
    if method.as_released:
        # a causal call of such widths takes SDPA on a CPU as long as one without a mask
        skips = model.device.type == "cuda" and not layout.masked.any()
        pairs = width * (width + 1) // 2 if skips else width**2
        return Work(rows * width, rows * width, rows * pairs)
    wanted = method.objective
    has_mask = (layout.mask_label != IGNORE) & wanted.wants_mask
    has_ar = (layout.ar_label != IGNORE) & wanted.wants_ar
    how = attention.kind(model.device)
    if how == "documents":
        pairs = Documents(wanted.predicate, layout, shared_heads(model), model.dtype).pairs
    else:
        pairs = batch.counts.attended if how == "flex" else rows * width**2
    return Work(rows * width, int((has_mask | has_ar).sum()), pairs)


# --------------------------------------------------------------------------- measured


@dataclass(frozen=True)
class Spent:
    """What some steps took: seconds by the clock, and of all threads' processor time."""

    seconds: float
    cpu_seconds: float


class Bench:
    """A model and its optimizer, on which methods take turns.

    The learning rate is 0, so no step sees another's weights; AdamW does its work all the same.
    """

    def __init__(
        self, model: PreTrainedModel, max_grad_norm: float = 1.0, bfloat16: bool = False
    ) -> None:
        """``bfloat16`` is autocast over the parameters, as in training."""
        model.train()
        self.model, self.max_grad_norm, self.bfloat16 = model, max_grad_norm, bfloat16
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def run(self, method: Method) -> Spent:
        """A step on each of a method's batches, by the clock."""
        with method.attending(self.model):
            before = self._now()
            for batch in method.batches:
                self._step(method, batch)
            after = self._now()
        return Spent(after[0] - before[0], after[1] - before[1])

    def peak_memory_mb(self, method: Method) -> float:
        """MiB of tensors at their most in a step: weights, gradients, optimizer, activations.

        Counted tensor by tensor (on a GPU by its allocator), so it is the method's own, whatever
        ran before in this process, and hardly varies. Of the batch with the most tokens.
        """
        batch = max(method.batches, key=lambda b: b.counts.clean_tokens)
        with method.attending(self.model):
            if not self.optimizer.state:
                self._step(method, batch)
            self.optimizer.zero_grad(set_to_none=True)
            if self.model.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                self._step(method, batch)
                return torch.cuda.max_memory_allocated() / 2**20
            held = [*self.model.parameters(), *self.model.buffers()]
            held += [v for state in self.optimizer.state.values() for v in state.values()]
            static = sum(x.nbytes for x in held if isinstance(x, Tensor))
            most = most_allocated(lambda: self._step(method, batch))
        return (static + most) / 2**20

    def _step(self, method: Method, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = method.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()

    def _now(self) -> tuple[float, float]:
        return clock(self.model.device.type), time.process_time()
