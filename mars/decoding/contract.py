"""What goes into a decoder and what comes out, the same for every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Finish = Literal["end_of_turn", "stop", "budget", "context"]


class DecodingError(ValueError):
    """A request or a setting that cannot be decoded; the message names it and the remedy."""


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
    """

    ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    finish: Finish = "budget"
    confidence: list[float] = field(default_factory=list)

    @property
    def forwards(self) -> int:
        """Forward passes the row took part in, prefill included."""
        return len(self.accepted)

    @property
    def tokens(self) -> int:
        """Kept tokens."""
        return len(self.ids)


class Decoder(Protocol):
    """A decoding method bound to a model and its settings."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one batch; the generations come in the order of the requests."""
