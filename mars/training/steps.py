"""The run as a list of optimizer steps: which conversations, packed how, on which process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from torch.utils.data import Dataset

from mars.config import Training
from mars.data import Encoded
from mars.training.objectives import Batch, Objective
from mars.training.objectives.base import Counts, Key
from mars.training.packing import micro_batches, pack, share


@dataclass(frozen=True)
class Order:
    """The run's ``total`` examples in the order they are seen, every epoch one after the other."""

    fetch: Callable[[int], tuple[Encoded, Key]]
    total: int


def shuffled(examples: Sequence[Encoded], epochs: int, seed: int) -> Order:
    """A seeded permutation of the examples for every epoch.

    It depends on the seed, the epoch and the number of examples only, so every variant trained
    on the same examples sees them in the same order.
    """
    orders = [
        np.random.default_rng([seed, epoch]).permutation(len(examples)) for epoch in range(epochs)
    ]

    def fetch(index: int) -> tuple[Encoded, Key]:
        epoch, place = divmod(index, len(examples))
        example = int(orders[epoch][place])
        return examples[example], (epoch, example)

    return Order(fetch, len(examples) * epochs)


@dataclass(frozen=True)
class Step:
    """One optimizer step, as one process sees it.

    Attributes:
        batches: this process's forwards, as many as every other's.
        counts: what the whole step holds, over all processes.
        keys: its examples, over all processes.
    """

    batches: tuple[Batch, ...]
    counts: Counts
    keys: tuple[Key, ...]


class Steps(Dataset):  # type: ignore[type-arg]
    """Step ``s`` is the examples ``[s · batch_size, (s + 1) · batch_size)`` of the order.

    Every process finds the same packing by itself and builds its own forwards of it, so that
    nothing has to be sent around. The loss of a step does not depend on how it is packed or split.
    """

    def __init__(
        self, order: Order, objective: Objective, config: Training,
        process: int = 0, processes: int = 1,
    ) -> None:  # fmt: skip
        self.order, self.objective, self.config = order, objective, config
        self.process, self.processes = process, processes

    def __len__(self) -> int:
        return math.ceil(self.order.total / self.config.batch_size)

    def __getitem__(self, step: int) -> Step:
        if not 0 <= step < len(self):
            raise IndexError(step)
        size = self.config.batch_size
        places = range(step * size, min((step + 1) * size, self.order.total))
        examples, keys = zip(*(self.order.fetch(i) for i in places), strict=True)
        layouts = [self.objective.row(e, key) for e, key in zip(examples, keys, strict=True)]
        widths = [layout.shape[1] for layout in layouts]
        counts = [self.objective.count([layout]) for layout in layouts]
        draw = np.random.default_rng([self.objective.setup.seed, step])
        rows = pack(widths, self.config.row_length, draw, at_least=self.processes)
        row_widths = [sum(widths[i] for i in row) for row in rows]
        groups = micro_batches(row_widths, self.config.micro_batch_tokens, self.processes)

        def build(group: list[int]) -> Batch:
            chosen = [rows[r] for r in group]
            packed = [[layouts[i] for i in row] for row in chosen]
            held = [i for row in chosen for i in row]
            total = sum((counts[i] for i in held), Counts())
            return self.objective.batch(packed, [keys[i] for i in held], total)

        mine = share(groups, self.process, self.processes)
        batches = [build(groups[0] if g is None else g) for g in mine]
        return Step(
            tuple(
                replace(batch, weight=0.0) if g is None else batch
                for batch, g in zip(batches, mine, strict=True)
            ),
            sum(counts, Counts()),
            keys,
        )


class Ahead(Dataset):  # type: ignore[type-arg]
    """Steps, of which the next one is laid out in a thread while one is trained on.

    What goes wrong in laying out a step is raised where that step is asked for.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.thread = ThreadPoolExecutor(1, "layout")
        self.next: tuple[int, Future[Step]] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> Step:
        asked = self.next if self.next and self.next[0] == step else self._lay_out(step)
        self.next = self._lay_out(step + 1) if step + 1 < len(self) else None
        return asked[1].result()

    def _lay_out(self, step: int) -> tuple[int, Future[Step]]:
        return step, self.thread.submit(self.steps.__getitem__, step)

    def close(self) -> None:
        """End the thread; a step that nobody waits for any more is left."""
        self.thread.shutdown(cancel_futures=True)
