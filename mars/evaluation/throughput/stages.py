"""The stages of a measurement: which methods take turns over which batches of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mars.config import Throughput
from mars.config.speed import Continuous
from mars.decoding.contract import Request
from mars.evaluation.throughput.methods import Batch, Method, Workbench
from mars.evaluation.throughput.replay import Draws


@dataclass(frozen=True)
class Stage:
    """Methods that take turns over the same batches.

    Attributes:
        part: grid or batching.
        acceptance: model or replayed.
        batch_size: rows of a batch; with ``batching`` the slots.
        max_new_tokens: the longest response.
    """

    part: str
    acceptance: str
    batch_size: int
    max_new_tokens: int
    batches: tuple[Batch, ...]
    methods: tuple[Method, ...]

    @property
    def name(self) -> str:
        """As in progress and summary."""
        return f"{self.part} {self.acceptance}"

    @property
    def setting(self) -> str:
        """Where its batch size is set."""
        batching = self.part == "batching"
        return "throughput.continuous.slots" if batching else "throughput.batch_sizes"

    @property
    def requests(self) -> int:
        """How many there are."""
        return sum(len(requests) for _, requests in self.batches)

    @property
    def longest(self) -> Batch:
        """The batch that needs the most columns."""
        return max(self.batches, key=lambda batch: max(map(_columns, batch[1])))


def _columns(request: Request) -> int:
    return len(request.prompt_ids) + request.max_new_tokens


def stages(bench: Workbench, prompts: Sequence[tuple[int, ...]], seed: int) -> Iterator[Stage]:
    """Everything a study measures, in order.

    Args:
        bench: makes the decoders.
        prompts: of the benchmark, as ids.
        seed: of the replayed acceptance and lengths.
    """
    grid = bench.grid
    if grid.thresholds:
        asked = [Request(prompt, grid.max_new_tokens) for prompt in prompts]
        methods = bench.at_thresholds()
        for size in grid.batch_sizes:
            yield _stage("grid", "model", size, asked[: grid.prompts_at(size)], methods)
    if grid.replay is None:
        return
    rate = grid.replay.tokens_per_forward
    asked = [Request(prompt, grid.replay.max_new_tokens) for prompt in prompts]
    length = grid.replay.max_new_tokens + bench.size
    draws = Draws(rate, bench.size, len(asked), length, seed, bench.device)
    methods = bench.replayed(draws)
    for size in grid.batch_sizes:
        yield _stage("grid", "replayed", size, asked[: grid.prompts_at(size)], methods)
    if part := grid.continuous:
        asked = continuous_requests(part, prompts, seed)
        length = part.longest + bench.size
        draws = Draws(rate, bench.size, len(asked), length, seed, bench.device)
        methods = bench.batching(draws)
        yield _stage("batching", "replayed", part.slots, asked, methods)


def _stage(
    part: str, acceptance: str, size: int, asked: Sequence[Request], methods: Sequence[Method]
) -> Stage:
    """Cut the requests into batches, the longest prompts first.

    That is the order in which our engine takes them, and so numbers them; replayed acceptance
    goes by that number. Prompts of like length together also spare the others padding.
    """
    asked = sorted(asked, key=lambda request: -len(request.prompt_ids))
    batches = tuple(
        (first, tuple(asked[first : first + size])) for first in range(0, len(asked), size)
    )
    longest = max(request.max_new_tokens for request in asked)
    return Stage(part, acceptance, size, longest, batches, tuple(methods))


def continuous_requests(
    part: Continuous, prompts: Sequence[tuple[int, ...]], seed: int
) -> list[Request]:
    """Requests whose response lengths are log-uniform; prompts repeat where there are too few."""
    low, high = np.log(part.shortest), np.log(part.longest + 1)
    drawn = np.exp(np.random.default_rng(seed).uniform(low, high, part.requests))
    lengths = np.clip(drawn.astype(int), part.shortest, part.longest)
    asked = (prompts[number % len(prompts)] for number in range(part.requests))
    return [Request(prompt, int(length)) for prompt, length in zip(asked, lengths, strict=True)]


def only_one_token(batch: Batch) -> Batch:
    """The same batch, asked for its first tokens only."""
    first, requests = batch
    return first, tuple(replace(request, max_new_tokens=1) for request in requests)


def positions_needed(grid: Throughput, prompts: Sequence[tuple[int, ...]]) -> int:
    """Of the longest prompt and the longest forced response."""
    budgets = [grid.max_new_tokens]
    budgets += [grid.replay.max_new_tokens] if grid.replay else []
    budgets += [grid.continuous.longest] if grid.continuous else []
    return max(map(len, prompts)) + max(budgets)
