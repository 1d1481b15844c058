"""The rows in flight: their state on the host, their tokens and keys on the device.

State is one numpy structured array, a record a row, so that a step's bookkeeping is a few array
operations however many rows there are, and nothing of it waits for the device.

Row i lives in slot i. Rows leave by compaction: the ones that stay move into the free slots, so
that a step's tensors are views. The last ``fresh`` rows are those whose prompt is not yet whole
in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import LongTensor, Tensor

from mars.decoding.backbone import Backbone
from mars.decoding.caches import CursorCache
from mars.decoding.contract import DecodingError, Finish, Generation, MemoryShortageError, Request

ROW = np.dtype(
    [
        ("index", np.int64),  # number of its request
        ("prompt", np.int64),  # tokens of the prompt
        ("length", np.int64),  # accepted tokens, the prompt included
        ("end", np.int64),  # the length at which budget or context is used up
        ("budget", np.int64),  # new tokens it was asked for
        ("cached", np.int64),  # the columns before this one hold keys of accepted tokens
        ("forwards", np.int64),  # forwards that yielded something
        ("tau", np.float64),  # its threshold; may change between steps
        ("block_end", np.int64),  # where its current block of the block cache ends
        ("writing", np.bool_),  # whether its next step writes the block before
        ("finder", np.int64),  # number of its stop sequences' finder, −1: it has none
        ("since", np.float64),  # the engine's share clock when it came
    ]
)
"""State of a row."""

Rows = NDArray[np.void]
"""Some rows: a slice of a structured array of ``ROW``; its fields are views."""


class Batch:
    """Rows in flight, in at most ``slots`` slots.

    Attributes:
        state: (R,) of ``ROW``; the first ``count`` are in flight.
        fresh: how many of them, the last ones, still have columns of their prompt to prefill.
        tokens: (R, C) long; accepted tokens, and ``fill`` or a guess in every column after them.
        confidence: (R, C) float64, of the accepted tokens of the response, at their columns.
        accepted: (R, C) on the host: what each forward of a row yielded.
        cache: the keys, or None where each step recomputes them.
        notes: what a method remembers of a request beside all this, by its index.
    """

    def __init__(
        self, backbone: Backbone, slots: int, columns: int, fill: int | None, stores: bool
    ) -> None:
        """Allocate.

        Args:
            backbone: the model.
            slots: R, rows in flight at most.
            columns: C, those that a row's tokens and its windows may reach.
            fill: what stands after the accepted tokens; None: the row's last prompt token.
            stores: whether keys are cached.
        """
        if stores:
            _refuse_beyond_memory(backbone, slots, columns)
        self.state: Rows = np.zeros(slots, dtype=ROW)
        self.count = self.fresh = 0
        self.tokens: LongTensor = torch.zeros(  # type: ignore[assignment]
            slots, columns, dtype=torch.long, device=backbone.device
        )
        self.confidence = torch.zeros(slots, columns, dtype=torch.float64, device=backbone.device)
        self.accepted: NDArray[np.int32] = np.zeros((slots, columns), dtype=np.int32)
        self.cache = CursorCache(backbone.layers, slots, columns) if stores else None
        self.notes: dict[int, Any] = {}
        self._fill = fill

    @property
    def rows(self) -> Rows:
        """The rows in flight."""
        return self.state[: self.count]

    def admit(self, requests: Sequence[Request], states: Rows) -> None:
        """Give requests the next free slots; ``states`` (K,) are their rows as they begin."""
        first, last = self.count, self.count + len(requests)
        columns = self.tokens.shape[1]
        ids = np.empty((len(requests), columns), dtype=np.int64)
        for line, request in zip(ids, requests, strict=True):
            prompt = len(request.prompt_ids)
            line[:prompt] = request.prompt_ids
            line[prompt:] = line[prompt - 1] if self._fill is None else self._fill
        self.accepted[first:last] = 0
        self.tokens[first:last] = torch.from_numpy(ids).to(self.tokens.device)
        self.state[first:last] = states
        self.count = last
        self.fresh += len(requests)

    def leave(self, slots: NDArray[np.int64]) -> None:
        """Free some slots: later rows move into them; fresh ones stay the last, in their order."""
        old = self.count - self.fresh
        staying = np.ones(self.count, dtype=bool)
        staying[slots] = False
        kept, fresh = np.flatnonzero(staying[:old]), old + np.flatnonzero(staying[old:])
        count = len(kept)
        moving, free = kept[kept >= count], np.setdiff1d(np.arange(count), kept)
        places = count + np.arange(len(fresh))
        shifted = fresh != places
        self.count, self.fresh = count + len(fresh), len(fresh)
        self._move(
            np.concatenate([moving, fresh[shifted]]), np.concatenate([free, places[shifted]])
        )

    def _move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        if not len(source):
            return
        self.state[target] = self.state[source]
        self.accepted[target] = self.accepted[source]
        moves = torch.from_numpy(np.stack([source, target])).to(self.tokens.device)
        for buffer in (self.tokens, self.confidence):
            buffer[moves[1]] = buffer[moves[0]]
        if self.cache is not None:
            self.cache.move(moves[0], moves[1])  # type: ignore[arg-type]

    def response(self, slot: int) -> Tensor:
        """The tokens that a row kept so far, (T,) long on the device."""
        row = self.state[slot]
        return self.tokens[slot, int(row["prompt"]) : int(row["length"])]

    def generation(self, slot: int, finish: Finish) -> Generation:
        """What a row that ended yielded."""
        row = self.state[slot]
        columns = slice(int(row["prompt"]), int(row["length"]))
        return Generation(
            ids=self.tokens[slot, columns].tolist(),
            accepted=self.accepted[slot, : int(row["forwards"])].tolist(),
            finish=finish,
            confidence=self.confidence[slot, columns].tolist(),
        )


def exhausted(row: Rows) -> Finish:
    """Why a row that reached its end ended."""
    return "budget" if row["end"] - row["prompt"] == row["budget"] else "context"


def check_request(request: Request, where: str, positions: int, vocabulary: int | None) -> None:
    """Refuse what cannot be decoded, naming the request and the remedy.

    Args:
        request: the request; where: its name.
        positions: of the model; vocabulary: rows of its embedding, None: not known.
    """
    prompt = len(request.prompt_ids)
    if prompt == 0:
        raise DecodingError(f"{where}: the prompt is empty: give at least one token")
    ids = request.prompt_ids
    if min(ids) < 0 or (vocabulary is not None and max(ids) >= vocabulary):
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise DecodingError(
            f"{where}: token {wrong} is none of the model's {vocabulary or 'many'}: encode the "
            "prompt with the tokenizer of this checkpoint"
        )
    if prompt >= positions:
        raise DecodingError(
            f"{where}: a prompt of {prompt} tokens leaves no room for a response in the "
            f"model's {positions} positions: shorten it to at most {positions - 1}"
        )
    if request.max_new_tokens < 1:
        raise DecodingError(
            f"{where}: max_new_tokens is {request.max_new_tokens}: it must be at least 1"
        )
    if isinstance(request.stop, str):
        raise DecodingError(f"{where}: stop is a text: give a tuple of texts, ({request.stop!r},)")
    if "" in request.stop:
        raise DecodingError(f"{where}: an empty stop sequence matches everywhere: leave it out")
    if request.tau is not None and not 0 < request.tau <= 1:
        raise DecodingError(f"{where}: tau is {request.tau}: it must lie in (0, 1]")


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device; torch gives back what it holds and does not use."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    return int(psutil.virtual_memory().available)


def _refuse_beyond_memory(backbone: Backbone, slots: int, columns: int) -> None:
    """Refuse a cache that does not fit, naming the number of rows that does."""
    rooms = [
        (free_bytes(device) // (column * columns), device, column * columns)
        for device, column in backbone.bytes_per_column.items()
    ]
    fits, device, row = min(rooms, key=itemgetter(0), default=(slots, backbone.device, 0))
    if fits < slots:
        remedy = f"at most {fits} rows fit (batch_size or slots)" if fits else "not even one fits"
        raise MemoryShortageError(
            f"the cache of {slots} rows of {columns} columns takes {row * slots / 1e9:.1f} GB, "
            f"and {free_bytes(device) / 1e9:.1f} GB are free on {device}: {remedy}; shorter "
            "prompts or a smaller max_new_tokens take fewer columns",
            fits,
        )
