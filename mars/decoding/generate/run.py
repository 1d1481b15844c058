"""Prompts on their way through the engine, and the answers that come of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mars.decoding.base import BoundDecoder
from mars.decoding.contract import Finish, Generation, Request
from mars.decoding.engine import Engine
from mars.decoding.generate.text import TextStream, whole_text

MOST_SLOTS = 32
"""Rows in flight where nobody says how many."""


@dataclass(frozen=True)
class Answer:
    """What came of a prompt.

    Attributes:
        text: without special tokens; it ends before a stop sequence.
        ids: the kept tokens, end-of-turn included.
        tokens, forwards: how many, and the forward passes they took, prefill included.
        tokens_per_forward: their ratio.
        finish: end_of_turn, stop, budget or context.
        seconds: from the start of decoding to this answer's end, waiting for a slot included.
    """

    text: str
    ids: tuple[int, ...]
    tokens: int
    forwards: int
    tokens_per_forward: float
    finish: Finish
    seconds: float


class Piece(NamedTuple):
    """Something new of a prompt: its number, further text, and the answer once it is finished."""

    number: int
    text: str
    answer: Answer | None


class Run:
    """Prompts being answered, as many at once as there are slots.

    Those that wait take their slots longest first, as a decoder's own ``generate`` has it.

    Args:
        decoder: a method bound to a model.
        tokenizer: the model's.
        requests: the prompts.
        slots: rows in flight at most.
    """

    def __init__(
        self, decoder: BoundDecoder, tokenizer: Any, requests: Sequence[Request], slots: int
    ) -> None:
        self._tokenizer, self._requests = tokenizer, requests
        columns = max((decoder.end(request) for request in requests), default=1)
        self._engine = Engine(decoder, slots, columns)
        # prompt numbers by the engine's, which counts as they are submitted
        self._order = sorted(range(len(requests)), key=lambda n: -len(requests[n].prompt_ids))
        for number in self._order:
            self._engine.submit(requests[number])
        self._done: dict[int, Answer] = {}
        self._seen: dict[int, int] = {}  # tokens of a row in flight that were turned into text

    def answers(self) -> list[Answer]:
        """All of them, in the order of the prompts."""
        for _ in self.pieces(as_it_comes=False):
            pass
        return [self._done[number] for number in range(len(self._requests))]

    def pieces(self, as_it_comes: bool = True) -> Iterator[Piece]:
        """New text of each prompt; a prompt's pieces concatenate to its answer's text.

        Args:
            as_it_comes: False gives one piece a prompt, when it is finished.
        """
        texts = [TextStream(self._tokenizer, request.stop) for request in self._requests]
        started = time.perf_counter()
        while self._engine.active or self._engine.waiting:
            finished = self._engine.step()
            for place, generation in finished:
                number = self._order[place]
                new = generation.ids[self._seen.pop(number, 0) :]
                answer = self._answer(number, generation, time.perf_counter() - started)
                self._done[number] = answer
                yield Piece(number, texts[number].push(new) + texts[number].close(), answer)
            for place, number in self._in_flight() if as_it_comes else ():
                ids = self._engine.so_far(place)
                new, self._seen[number] = ids[self._seen.get(number, 0) :], len(ids)
                if text := texts[number].push(new):
                    yield Piece(number, text, None)

    def tokens_so_far(self) -> int:
        """Tokens kept up to now, of finished and of unfinished answers."""
        done = sum(answer.tokens for answer in self._done.values())
        return done + sum(len(self._engine.so_far(place)) for place, _ in self._in_flight())

    def _in_flight(self) -> list[tuple[int, int]]:
        """(number of the engine, number of the prompt); slots are taken in the engine's order."""
        begun = self._order[: len(self._order) - self._engine.waiting]
        return [(place, n) for place, n in enumerate(begun) if n not in self._done]

    def _answer(self, number: int, made: Generation, seconds: float) -> Answer:
        return Answer(
            text=whole_text(self._tokenizer, made.ids, self._requests[number].stop),
            ids=tuple(made.ids),
            tokens=made.tokens,
            forwards=made.forwards,
            tokens_per_forward=round(made.tokens / max(made.forwards, 1), 4),
            finish=made.finish,
            seconds=round(seconds, 4),
        )
