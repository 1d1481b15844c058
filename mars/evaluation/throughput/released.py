"""The paper's algorithm as it was released, to be measured against: written anew, not copied.

The traits that cost time, and where each is known from (arXiv 2604.07023, with the released
sampler as the project's notes on it describe it):

- The prefix's keys are frozen while the rows of a batch fill a block of B_cache tokens, and a row
  that has filled its own waits for the others (the paper, on batch inference with a block cache:
  the cache is updated only when a full block is accepted across all samples).
- Each step works on a deep copy of the whole ``DynamicCache``, which the forward extends and which
  is then thrown away (the released sampler).
- One more forward, over the full block, writes it to the cache and yields no token (the same:
  the prefix is extended by a single full forward; the paper's step counts leave it out).
- Prompts are padded on the left, the softmax is taken over the vocabulary at every position that
  was forwarded, and nothing leaves the batch before its last row is done (the released sampler).

It accepts what ``cache: block`` accepts: the cuts are at the same lengths, prompt + k · B_cache.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import BoolTensor, LongTensor, Tensor
from transformers import DynamicCache

from mars.decoding.acceptance import accepted_counts, predict
from mars.decoding.contract import DecodingError, Generation, Request, Work
from mars.decoding.rows import check_request
from mars.decoding.window import Predictions

Agreement = Callable[[Predictions], BoolTensor]


def confident(step: Predictions) -> BoolTensor:
    """(N, D) confidence at or above τ."""
    return step.confidence >= step.tau  # type: ignore[return-value]


@dataclass
class _Row:
    """One request: where its budget or context ends, and whether it has."""

    request: Request
    generation: Generation
    budget: int
    tau: float
    filled: int = 0
    done: bool = False


@dataclass
class _State:
    """A batch that is being decoded.

    Attributes:
        rows: of the requests, in their order; none ever leaves.
        block: (N, B_cache + B) the tokens of the open block, ``[MASK]`` after them.
        seen: (N, C) 1 where a column of the cache is no padding.
        cache: the keys of the C columns before the block.
        next: (N, 1) the token that the last of these columns predicts, and its confidence.
    """

    rows: list[_Row]
    block: LongTensor
    seen: LongTensor
    cache: Any
    next: tuple[LongTensor, Tensor]


class ReleasedDecoder:
    """Decodes batches as the released sampler does.

    Args:
        model: a causal LM of ``transformers``.
        block_size: B, tokens predicted a step.
        tau: the threshold of the rows that do not bring their own.
        cache_block: B_cache.
        mask_id, end_ids: of ``[MASK]``, and of the end of a turn.
        agreement: which predictions may follow those before them.
        positions: context limit; None takes the model's.
    """

    def __init__(
        self,
        model: Any,
        *,
        block_size: int,
        tau: float,
        cache_block: int,
        mask_id: int,
        end_ids: Sequence[int],
        agreement: Agreement = confident,
        positions: int | None = None,
    ) -> None:
        if block_size < 2:
            raise DecodingError(f"block_size is {block_size}: nothing is drafted; set at least 2")
        self.work = Work()
        self._model = model
        self._size, self._tau, self._cache_block = block_size, tau, cache_block
        self._mask = mask_id
        self._ends = torch.tensor(sorted(end_ids), dtype=torch.long, device=model.device)
        self._agreement = agreement
        self._positions = positions or model.config.max_position_embeddings
        accepted = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one batch; the generations come in the order of the requests.

        A forward that only writes to the cache is one that its rows took part in, and counts as
        one that accepted nothing.
        """
        state = self._prefill(requests)
        while True:
            while any(self._room(row) for row in state.rows):
                self._step(state)
            if all(row.done for row in state.rows):
                return [row.generation for row in state.rows]
            self._write(state)

    def _prefill(self, requests: Sequence[Request]) -> _State:
        """Write the prompts, padded on the left, to an empty cache."""
        device = self._model.device
        width = max(len(request.prompt_ids) for request in requests)
        ids, seen, rows = [], [], []
        for number, request in enumerate(requests):
            check_request(
                request, f"request {number}", self._positions, self._model.config.vocab_size
            )
            if request.stop:
                raise DecodingError(f"request {number}: released knows no stop sequences")
            prompt = len(request.prompt_ids)
            ids.append([self._mask] * (width - prompt) + list(request.prompt_ids))
            seen.append([0] * (width - prompt) + [1] * prompt)
            budget = min(request.max_new_tokens, self._positions - prompt)
            tau = self._tau if request.tau is None else request.tau
            rows.append(_Row(request, Generation(), budget, tau))
        columns = self._cache_block + self._size
        state = _State(
            rows=rows,
            block=torch.full((len(rows), columns), self._mask, device=device),  # type: ignore[arg-type]
            seen=torch.empty(len(rows), 0, dtype=torch.long, device=device),  # type: ignore[arg-type]
            cache=DynamicCache(config=self._model.config),
            next=(None, None),  # type: ignore[arg-type]
        )
        self._commit(state, torch.tensor(ids, device=device), torch.tensor(seen, device=device))
        return state

    def _write(self, state: _State) -> None:
        """One more forward, over the full block, and the next one is open."""
        full = state.block[:, : self._cache_block]
        self._commit(state, full, torch.ones_like(full))
        state.block.fill_(self._mask)
        for row in state.rows:
            row.filled = 0

    def _commit(self, state: _State, ids: Tensor, seen: Tensor) -> None:
        """Forward (N, W) tokens into the cache; ``seen`` (N, W) is 0 at padding."""
        tokens, confidence = self._predict(state, ids, seen, state.cache)
        state.seen = torch.cat([state.seen, seen], 1)  # type: ignore[assignment]
        state.next = tokens[:, -1:], confidence[:, -1:]  # type: ignore[assignment]
        for row in state.rows:
            if not row.done:
                row.generation.accepted.append(0)

    def _predict(
        self, state: _State, ids: Tensor, seen: Tensor, cache: Any
    ) -> tuple[LongTensor, Tensor]:
        """(N, W) tokens and confidences after each position of (N, W) forwarded ones."""
        mask = torch.cat([state.seen, seen], 1)
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1)[:, -ids.shape[1] :].clamp(0, self._positions - 1),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        columns = mask.shape[1]
        self.work.forwards += 1
        self.work.tokens += ids.numel()
        self.work.heads += ids.numel()
        self.work.keys += ids.numel() * columns
        self.work.cached += len(ids) * columns
        return predict(output.logits, "probability", self._mask)

    def _room(self, row: _Row) -> int:
        """How many tokens a row may accept now; 0 where it waits for the others, or is done."""
        if row.done:
            return 0
        drafted = self._size if row.tau < 1 else 1
        left = row.budget - len(row.generation.ids)
        return min(drafted, left, self._cache_block - row.filled)

    def _step(self, state: _State) -> None:
        """Predict after the block so far and its masks, on a copy of the cache; accept."""
        device = state.block.device
        room = torch.tensor([self._room(row) for row in state.rows], device=device)
        filled = torch.tensor([row.filled for row in state.rows], device=device)
        furthest = max(row.filled for row in state.rows if self._room(row))
        width = min(furthest + self._size - 1, self._cache_block)
        ids = state.block[:, :width]
        tokens, confidence = self._predict(
            state, ids, torch.ones_like(ids), copy.deepcopy(state.cache)
        )
        tokens = torch.cat([state.next[0], tokens], 1)  # type: ignore[assignment]
        confidence = torch.cat([state.next[1], confidence], 1)
        place = filled[:, None] + torch.arange(self._size, device=device)
        reached = place.clamp(max=width)
        predicted, confidence = tokens.gather(1, reached), confidence.gather(1, reached)
        step = self._predictions(state, place, predicted, confidence)
        ends = torch.isin(predicted, self._ends)
        counts = accepted_counts(self._agreement(step), ends, room)  # type: ignore[arg-type]
        rejected = torch.arange(self._size, device=device) >= counts[:, None]
        state.block.scatter_(1, place, torch.where(rejected, self._mask, predicted))
        self._settle(state, counts.tolist(), predicted.tolist(), confidence.tolist())

    def _predictions(
        self, state: _State, place: Tensor, predicted: Tensor, confidence: Tensor
    ) -> Predictions:
        """A step as acceptance sees it; ``place`` (N, B) counts from the block's start."""
        rows, device = state.rows, place.device
        prompts = torch.tensor([[len(row.request.prompt_ids)] for row in rows], device=device)
        kept = torch.tensor([[len(row.generation.ids)] for row in rows], device=device)
        return Predictions(
            draft=torch.full_like(predicted, self._mask),  # type: ignore[arg-type]
            predicted=predicted,  # type: ignore[arg-type]
            confidence=confidence,
            tau=torch.tensor([[row.tau] for row in rows], dtype=torch.float64, device=device),
            column=prompts + kept + place - place[:, :1],  # type: ignore[arg-type]
            prompt=prompts,  # type: ignore[arg-type]
            index=torch.arange(len(rows), device=device)[:, None],  # type: ignore[arg-type]
        )

    def _settle(
        self,
        state: _State,
        counts: list[int],
        predicted: list[list[int]],
        confidence: list[list[float]],
    ) -> None:
        """Write down what each row accepted."""
        ends = set(self._ends.tolist())
        for slot, row in enumerate(state.rows):
            if not (count := counts[slot]):
                continue
            kept = row.generation
            kept.ids += predicted[slot][:count]
            kept.confidence += confidence[slot][:count]
            kept.accepted.append(count)
            row.filled += count
            if kept.ids[-1] in ends:
                kept.finish, row.done = "end_of_turn", True
            elif len(kept.ids) == row.budget:
                within = row.budget == row.request.max_new_tokens
                kept.finish, row.done = "budget" if within else "context", True
