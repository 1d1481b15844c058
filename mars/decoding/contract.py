"""What goes into a decoder and what comes out, the same for every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Finish = Literal["end_of_turn", "stop", "budget", "context"]


class DecodingError(ValueError):
    """A request or a setting that cannot be decoded; the message names it and the remedy."""


class MemoryShortageError(DecodingError, MemoryError):
    """More rows than the memory holds.

    Attributes:
        fits: how many it does hold.
    """

    def __init__(self, message: str, fits: int) -> None:
        super().__init__(message)
        self.fits = fits


@dataclass(frozen=True)
class Request:
    """One prompt, as token ids.

    Attributes:
        prompt_ids: the prompt; must not be empty.
        max_new_tokens: the budget.
        stop: stop sequences, as text, looked for in the response only.
        tau: the threshold of this row; None takes the decoder's.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    tau: float | None = None


@dataclass
class Generation:
    """One response.

    Attributes:
        ids: kept tokens: the end-of-turn token included, nothing after it, a stop or the budget.
        accepted: how many of the kept tokens each forward the row took part in yielded, in order;
            they sum to ``len(ids)``.
        finish: why the row ended. ``context``: the model's positions ran out before the budget.
        confidence: of each kept token, under the untempered distribution, in (0, 1].
        seconds: its share of the time that passed while it was in flight: a step's seconds are
            divided among the rows in flight.
    """

    ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    finish: Finish = "budget"
    confidence: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def forwards(self) -> int:
        """Forward passes the row took part in, prefill included."""
        return len(self.accepted)

    @property
    def tokens(self) -> int:
        """Kept tokens."""
        return len(self.ids)


@dataclass
class Work:
    """What a decoder had its model compute, summed over forward passes.

    Attributes:
        forwards: forward passes (of the batch, not of its rows).
        tokens: columns that went through the body, padding included.
        heads: positions that went through the LM head.
        keys: query–key pairs: for each query the columns its row's keys were read from.
        cached: columns of keys and values read, each row's once a forward.
    """

    forwards: int = 0
    tokens: int = 0
    heads: int = 0
    keys: int = 0
    cached: int = 0


class Decoder(Protocol):
    """A decoding method bound to a model and its settings."""

    work: Work
    """What was computed since it was last set to ``Work()``."""

    def generate(self, requests: Sequence[Request], slots: int | None = None) -> list[Generation]:
        """Decode; the generations come in the order of the requests.

        ``slots``: rows in flight at most; finished rows leave and waiting ones take their places.
        None: all at once.
        """

    def stream(
        self, requests: Sequence[Request], slots: int | None = None
    ) -> Iterator[tuple[int, Generation]]:
        """As ``generate``, each (index, generation) as soon as it is finished."""
