"""What ours is compared with: greedy ``generate`` of ``transformers``, as its users have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import LongTensor
from transformers import CompileConfig, GenerationConfig

from mars.decoding.contract import DecodingError, Generation, Request, Work


class TransformersGenerate:
    """Greedy ``generate`` over batches padded on the left.

    Args:
        model: with the linears of ``transformers``.
        cache: ``dynamic`` grows with the sequence, ``static`` is allocated once.
        pad_id: stands to the left of the shorter prompts.
        end_ids: what ends a turn; none: every response is as long as its budget.
        compile: have ``generate`` compile the decoding forward (static cache only).
    """

    def __init__(
        self,
        model: Any,
        *,
        cache: Literal["dynamic", "static"],
        pad_id: int,
        end_ids: Sequence[int],
        compile: bool = False,
    ) -> None:
        self.work = Work()
        self._model, self._pad = model, pad_id
        self._ends = sorted(end_ids)
        self._static = cache == "static"
        self._compiled = self._static and (compile or model.device.type != "cpu")
        self._options: dict[str, Any] = {
            "do_sample": False,
            "use_cache": True,
            "pad_token_id": pad_id,
            "eos_token_id": self._ends or None,
        }
        if self._static:
            self._options["cache_implementation"] = "static"
            self._options |= _compilation(model.device.type, compile)

    # no_grad is generate's own; inference_mode saves a little more, and ours runs under it too
    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one batch; the generations come in the order of the requests."""
        budget = requests[0].max_new_tokens
        if any(r.max_new_tokens != budget or r.stop or r.tau for r in requests):
            raise DecodingError("generate takes one max_new_tokens a batch, no stop, no tau")
        ids, seen = self._padded(requests)
        if not self._compiled:
            # the model remembers its longest static cache, so that one compiled program serves
            # all calls; where nothing is compiled, a cache longer than needed is only slower
            self._model._previous_max_cache_length = -1
        # what a checkpoint says of generation (a repetition penalty, say) would not be greedy
        told, self._model.generation_config = self._model.generation_config, GenerationConfig()
        try:
            made = self._model.generate(
                ids, attention_mask=seen, max_new_tokens=budget, **self._options
            )[:, ids.shape[1] :]
        finally:
            self._model.generation_config = told
        self._count(len(requests), ids.shape[1], made.shape[1], budget)
        return [self._generation(row) for row in made.tolist()]

    def _padded(self, requests: Sequence[Request]) -> tuple[LongTensor, LongTensor]:
        """(N, P) prompts padded on the left, and (N, P) 0 at the padding."""
        width = max(len(request.prompt_ids) for request in requests)
        ids, seen = [], []
        for request in requests:
            padding = width - len(request.prompt_ids)
            ids.append([self._pad] * padding + list(request.prompt_ids))
            seen.append([0] * padding + [1] * len(request.prompt_ids))
        tensors = torch.tensor([ids, seen], device=self._model.device)
        return tensors[0], tensors[1]  # type: ignore[return-value]

    def _count(self, rows: int, prompt: int, steps: int, budget: int) -> None:
        """Add what its loop computes: prefill, and then a column a row and step."""
        work = self.work
        whole = max(prompt + budget - 1, getattr(self._model, "_previous_max_cache_length", 0))
        read = [whole if self._static else prompt + step for step in range(steps)]
        work.forwards += steps
        work.tokens += rows * (prompt + steps - 1)
        work.heads += rows * steps
        work.keys += rows * (prompt * read[0] + sum(read[1:]))
        work.cached += rows * sum(read)

    def _generation(self, made: list[int]) -> Generation:
        """Up to and including the end of the turn."""
        ends = [made.index(end) + 1 for end in self._ends if end in made]
        kept = made[: min(ends, default=len(made))]
        return Generation(kept, [1] * len(kept), "end_of_turn" if ends else "budget")


def _compilation(device: str, wanted: bool) -> dict[str, Any]:
    """Where a GPU is, ``generate`` compiles by itself, and is left to; on a CPU where asked to."""
    if device != "cpu":
        return {}
    if not wanted:
        return {"disable_compile": True}
    compilation = CompileConfig(mode="default")
    compilation._compile_all_devices = True
    return {"compile_config": compilation}
