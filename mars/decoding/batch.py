"""The rows of one batch: their tokens and keys on the device, their state on the host.

Row i lives in slot i. Finished rows leave at once: the last rows move into their slots, so that
the active ones are always the first and a step's tensors are views.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import LongTensor

from mars.decoding.caches import Backbone, CursorCache, Row
from mars.decoding.contract import DecodingError, Finish, Generation, Request


def check_requests(requests: Sequence[Request], positions: int) -> None:
    """Refuse what cannot be decoded, naming the request and the remedy."""
    for index, request in enumerate(requests):
        prompt, where = len(request.prompt_ids), f"request {index}"
        if prompt == 0:
            raise DecodingError(f"{where}: the prompt is empty: give at least one token")
        if prompt >= positions:
            raise DecodingError(
                f"{where}: a prompt of {prompt} tokens leaves no room for a response in the "
                f"model's {positions} positions: shorten it to at most {positions - 1}"
            )
        if request.max_new_tokens < 1:
            raise DecodingError(
                f"{where}: max_new_tokens is {request.max_new_tokens}: it must be at least 1"
            )
        if "" in request.stop:
            raise DecodingError(f"{where}: an empty stop sequence matches everywhere: leave it out")
        if request.tau is not None and not 0 < request.tau <= 1:
            raise DecodingError(f"{where}: tau is {request.tau}: it must lie in (0, 1]")


class Batch:
    """Requests being decoded together.

    Attributes:
        rows: the active rows; row i is slot i of ``tokens`` and ``cache``.
        tokens: (R, C) long; accepted tokens, and ``fill`` or a guess in every column after them.
        cache: the keys, or None where each step recomputes them.
        generations: one per request, in order, filled as the rows go.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        backbone: Backbone,
        tau: float,
        fill: int | None,
        spare: int,
        stores: bool,
    ) -> None:
        """Lay out the prompts.

        Args:
            requests: what to decode.
            backbone: the model.
            tau: threshold of the rows that do not bring their own.
            fill: what stands after the accepted tokens; None: the row's last prompt token.
            spare: columns a step may touch beyond a row's last token.
            stores: whether keys are cached.
        """
        check_requests(requests, backbone.positions)
        self.generations = [Generation() for _ in requests]
        self.rows = []
        for index, request in enumerate(requests):
            prompt = len(request.prompt_ids)
            self.rows.append(
                Row(
                    index=index,
                    request=request,
                    generation=self.generations[index],
                    length=prompt,
                    end=min(prompt + request.max_new_tokens, backbone.positions),
                    tau=tau if request.tau is None else request.tau,
                    block_end=prompt,
                )
            )
        columns = max((row.end for row in self.rows), default=0) + spare
        self.tokens: LongTensor = torch.tensor(  # type: ignore[assignment]
            [
                [*prompt, *[prompt[-1] if fill is None else fill] * (columns - len(prompt))]
                for prompt in (request.prompt_ids for request in requests)
            ],
            dtype=torch.long,
            device=backbone.device,
        )
        self.cache = CursorCache(backbone.layers, len(requests), columns) if stores else None

    def finish(self, finished: Sequence[tuple[int, Finish]]) -> None:
        """Let rows leave, given their slots in ascending order and why they ended."""
        for slot, reason in finished:
            self.rows[slot].generation.finish = reason
        leaving = {slot for slot, _ in finished}
        kept = len(self.rows) - len(leaving)
        target = [slot for slot in leaving if slot < kept]
        source = [slot for slot in range(kept, len(self.rows)) if slot not in leaving]
        for to, slot in zip(target, source, strict=True):
            self.rows[to] = self.rows[slot]
        del self.rows[kept:]
        if target:
            moves = torch.tensor([source, target], device=self.tokens.device)
            self.tokens[moves[1]] = self.tokens[moves[0]]
            if self.cache is not None:
                self.cache.move(moves[0], moves[1])  # type: ignore[arg-type]


def exhausted(row: Row) -> Finish:
    """Why a row that reached its end ended."""
    used = row.end - len(row.request.prompt_ids)
    return "budget" if used == row.request.max_new_tokens else "context"
