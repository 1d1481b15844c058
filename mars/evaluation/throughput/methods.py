"""The methods that are measured: how each is made, and which of them a part of the grid has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mars.config import Decoding, Throughput
from mars.decoding.contract import Generation, Request
from mars.decoding.costs import CostTable
from mars.decoding.make import end_of_turn_ids, make_decoder
from mars.evaluation.throughput.opponents import TransformersGenerate
from mars.evaluation.throughput.released import ReleasedDecoder, confident
from mars.evaluation.throughput.replay import Draws, replaying
from mars.evaluation.throughput.summary import name_of
from mars.models import mask_token_id

RELEASED_BLOCK = 32
"""The released algorithm is run at the largest block up to this: the paper's own choice."""

REPLAY_TAU = 0.95
"""Nominal under replayed acceptance, which does not look at it: below 1, so that rows draft."""

Batch = tuple[int, tuple[Request, ...]]
"""Requests that are decoded together, and the number of the first of them among all."""


@dataclass(frozen=True)
class Models:
    """The checkpoints under measurement, loaded.

    Attributes:
        mars, ar: for our decoders and the released algorithm, with the linears of the grid.
        stock: the AR checkpoint as ``transformers`` loads it.
        tokenizer, ar_tokenizer: of the two checkpoints.
        checkpoint, ar_checkpoint: their hashes.
        linears: those that ``mars`` and ``ar`` have.
    """

    mars: Any
    ar: Any
    stock: Any
    tokenizer: Any
    ar_tokenizer: Any
    checkpoint: str
    ar_checkpoint: str
    linears: str


@dataclass(frozen=True)
class Method:
    """One line of the grid: a decoder and what it is known by.

    Attributes:
        name: generate, generate_static, ar, mars or released.
        cache: dynamic or static of ``generate``; else none, block or cursor.
        decoder: has ``generate(requests)`` and ``work``.
        model: what it runs.
        checkpoint: hash of its checkpoint.
        linears: of its model.
        cache_block, block_size, tau, draft: as in ``Decoding``; empty where without meaning.
        continuous: whether a row that ends gives its place to the next request, as our engine
            does; else batch after batch, each to the end of its last row.
        draws: the acceptance that is replayed to it.
        compiled: whether something is compiled or captured for each shape that it meets.
    """

    name: str
    cache: str
    decoder: Any
    model: Any
    checkpoint: str
    linears: str
    cache_block: int | None = None
    block_size: int = 1
    tau: float | None = None
    draft: str = ""
    continuous: bool = False
    draws: Draws | None = None
    compiled: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        """What says in a row of the CSV which method it was."""
        return {
            "method": self.name,
            "cache": self.cache,
            "cache_block": self.cache_block,
            "block_size": self.block_size,
            "tau": self.tau,
            "draft": self.draft,
            "scheduling": "continuous" if self.continuous else "static",
            "linears": self.linears,
            "checkpoint": self.checkpoint,
        }

    @property
    def label(self) -> str:
        """A short name that no other method of its stage has."""
        return name_of(self.columns)

    def decode(self, batch: Batch) -> list[Generation]:
        """Decode one batch."""
        first, requests = batch
        if self.draws is not None:
            self.draws.first = first
        return self.decoder.generate(requests)

    def run(self, batches: Sequence[Batch]) -> list[Generation]:
        """Decode all batches, one after the other or as places become free."""
        if not self.continuous:
            return [made for batch in batches for made in self.decode(batch)]
        if self.draws is not None:
            self.draws.first = 0
        requests = [request for _, batch in batches for request in batch]
        return self.decoder.generate(requests, slots=len(batches[0][1]))


class Workbench:
    """Makes decoders of the models, with what all of them share."""

    def __init__(
        self,
        grid: Throughput,
        block_size: int,
        models: Models,
        costs: CostTable,
        positions: int,
        device: str,
    ) -> None:
        """Bind what is shared.

        Args:
            grid: the study's section.
            block_size: B.
            models: the checkpoints.
            costs: of a forward of ``models.mars``, for ``draft: auto``.
            positions: context limit where responses are forced to a length.
            device: of the models.
        """
        self.grid, self.size = grid, block_size
        self.models, self.costs, self.device = models, costs, device
        self._positions = positions

    @cached_property
    def released_block(self) -> int:
        """The largest block of the grid up to the paper's; where all are larger, the smallest."""
        within = [block for block in self.grid.cache_blocks if block <= RELEASED_BLOCK]
        return max(within) if within else min(self.grid.cache_blocks)

    # ---- one method each

    def generate(self, cache: str, forced: bool) -> Method:
        """``transformers``' own; ``forced``: no response ends before its budget."""
        made, tokenizer = self.models, self.models.ar_tokenizer
        ends = end_of_turn_ids(made.stock, tokenizer)
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        decoder = TransformersGenerate(
            made.stock,
            cache=cache,  # type: ignore[arg-type]
            pad_id=pad,
            end_ids=() if forced else ends,
            compile=self.grid.compile,
        )
        static = cache == "static"
        return Method(
            "generate_static" if static else "generate",
            cache,
            decoder,
            made.stock,
            made.ar_checkpoint,
            "stock",
            compiled=static and (self.grid.compile or self.device == "cuda"),
        )

    def ar(self, forced: bool, continuous: bool = True) -> Method:
        """Our decoder at one token a step."""
        made = self.models
        decoder = make_decoder(
            made.ar,
            made.ar_tokenizer,
            Decoding(decoder="ar", cache="cursor"),
            **self._options(forced),
        )
        return Method(
            "ar",
            "cursor",
            decoder,
            made.ar,
            made.ar_checkpoint,
            made.linears,
            continuous=continuous,
            compiled=self.grid.compile,
        )

    def mars(
        self,
        cache: str,
        block: int | None = None,
        *,
        tau: float | None = None,
        draft: str = "B",
        draws: Draws | None = None,
        continuous: bool = False,
    ) -> Method:
        """MARS with one of the caches, at τ or with replayed acceptance."""
        made = self.models
        settings = Decoding(
            decoder="mars",
            block_size=self.size,
            tau=REPLAY_TAU if tau is None else tau,
            cache=cache,  # type: ignore[arg-type]
            cache_block=block,
            draft=draft,  # type: ignore[arg-type]
        )
        decoder = make_decoder(
            made.mars,
            made.tokenizer,
            settings,
            costs=self.costs if draft == "auto" else None,
            method=None if draws is None else replaying(draws),
            **self._options(draws is not None),
        )
        return self._drafting(
            "mars",
            cache,
            decoder,
            cache_block=block,
            tau=tau,
            draft=draft,
            continuous=continuous,
            draws=draws,
            compiled=self.grid.compile,
        )

    def released(self, tau: float | None = None, draws: Draws | None = None) -> Method:
        """The paper's algorithm as released."""
        made, block = self.models, self.released_block
        decoder = ReleasedDecoder(
            made.mars,
            block_size=self.size,
            tau=REPLAY_TAU if tau is None else tau,
            cache_block=block,
            mask_id=mask_token_id(made.mars, made.tokenizer),
            end_ids=() if draws else end_of_turn_ids(made.mars, made.tokenizer),
            agreement=draws.agreement if draws else confident,
            positions=self._positions if draws else None,
        )
        return self._drafting(
            "released", "block", decoder, cache_block=block, tau=tau, draft="B", draws=draws
        )

    def _options(self, forced: bool) -> dict[str, Any]:
        """Only where nothing is said about quality may responses outgrow the model's positions."""
        lengths = {"end_ids": (), "positions": self._positions} if forced else {}
        return {"compile": self.grid.compile, **lengths}

    def _drafting(self, name: str, cache: str, decoder: Any, **more: Any) -> Method:
        made = self.models
        return Method(
            name,
            cache,
            decoder,
            made.mars,
            made.checkpoint,
            made.linears,
            block_size=self.size,
            **more,
        )

    # ---- the lists

    def at_thresholds(self) -> list[Method]:
        """The model decides what is accepted. What has no τ is run once beside all of them."""
        methods = [self.generate("dynamic", False), self.generate("static", False), self.ar(False)]
        for tau in self.grid.thresholds:
            methods.append(self.mars("none", tau=tau))
            methods += [self.mars("block", block, tau=tau) for block in self.grid.cache_blocks]
            methods.append(self.mars("cursor", tau=tau, continuous=True))
            methods.append(self.mars("cursor", tau=tau, draft="auto", continuous=True))
            methods.append(self.released(tau=tau))
        return methods

    def replayed(self, draws: Draws) -> list[Method]:
        """The draws decide, for every method alike."""
        return [
            self.generate("dynamic", True),
            self.generate("static", True),
            self.ar(True),
            self.released(draws=draws),
            self.mars("none", draws=draws),
            self.mars("block", self.released_block, draws=draws),
            self.mars("cursor", draws=draws, continuous=True),
            self.mars("cursor", draft="auto", draws=draws, continuous=True),
        ]

    def batching(self, draws: Draws) -> list[Method]:
        """Static against continuous batching."""
        return [
            self.ar(True, False),
            self.ar(True, True),
            self.mars("cursor", draws=draws),
            self.mars("cursor", draws=draws, continuous=True),
            self.mars("cursor", draft="auto", draws=draws),
            self.mars("cursor", draft="auto", draws=draws, continuous=True),
        ]
