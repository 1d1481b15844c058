"""Where the numbers come from that claims are judged by: a study's results, or the paper's tables.

Both answer the same questions, so a claim is judged by the same code on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mars.analysis.statistics import Estimate


class Model(NamedTuple):
    """A model as the paper names it, and how it is read."""

    name: str
    block_size: int | None = None
    tau: float = 1.0

    def __str__(self) -> str:
        size = f" B = {self.block_size}" if self.block_size else ""
        return self.name + size + (f" at τ = {self.tau:g}" if self.tau < 1 else "")


class Term(NamedTuple):
    """A weight in a sum of scores, the model, and the benchmark (None: the mean of all)."""

    weight: float
    model: Model
    column: str | None = None


Source = tuple[str, ...]
"""What a number is made of: ("evaluation", scale, variant), ("throughput",), ("training_cost",)."""


class Evidence(Protocol):
    """Estimates by scale and model; None where there is none."""

    @property
    def columns(self) -> Sequence[str]:
        """The benchmarks, by the paper's column titles."""

    @property
    def panels(self) -> Sequence[str]:
        """Of them, those that the frontier figure shows."""

    @property
    def scales(self) -> Sequence[str]:
        """The scales, in order."""

    def paper_scale(self, scale: str) -> str | None:
        """The paper's name of a scale."""

    def has(self, scale: str, model: Model, columns: Sequence[str] | None = None) -> bool:
        """Whether a model is to be there at all, on those columns (None: on all)."""

    def block_sizes(self, scale: str, name: str) -> list[int]:
        """The block sizes of a model, rising."""

    def thresholds(self, scale: str, model: Model, column: str) -> list[float]:
        """The thresholds at which a model is read on a benchmark, from 1 down."""

    def score(self, scale: str, terms: Sequence[Term]) -> Estimate | None:
        """A weighted sum of scores, in points, paired by document."""

    def pace(self, scale: str, model: Model) -> Estimate | None:
        """Tokens per forward, the mean over benchmarks."""

    def jacobi(self, scale: str) -> Estimate | None:
        """Tokens per forward of Jacobi decoding on AR SFT, the mean over benchmarks."""

    @property
    def jacobi_scales(self) -> Sequence[str]:
        """The scales at which it is to be there."""

    @property
    def timed(self) -> str | None:
        """The scale whose wall-clock is to be there."""

    def batch_sizes(self, cache: str, cache_block: int | None) -> Sequence[int]:
        """Those at which MARS with a cache is to be timed."""

    def speedup(self, cache: str, cache_block: int | None, batch_size: int) -> Estimate | None:
        """MARS over the fastest cached AR, by seconds over the same prompts."""

    def trend(
        self, cache: str, cache_block: int | None, batch_sizes: Sequence[int]
    ) -> Estimate | None:
        """By what factor that speedup changes with each doubling of the batch."""

    def training_time(self, layout: str) -> tuple[str, Estimate | None] | None:
        """Step time of MARS in a layout (released, ours) ÷ AR SFT's, and what that is; None: not
        part of the study."""

    def sources(self, scale: str, models: Sequence[Model]) -> tuple[Source, ...]:
        """What the scores of models at a scale are made of."""
