"""Decoding as many rows at once as the memory holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import torch

from mars.decoding.contract import Decoder, Generation, MemoryShortageError, Request
from mars.evaluation.source import EvaluationError

log = logging.getLogger(__name__)


def within_memory(
    decoder: Decoder, requests: Sequence[Request], rows: int
) -> Iterator[tuple[int, Generation]]:
    """As ``decoder.stream``; where the memory does not hold so many rows, fewer go on.

    What is finished is not decoded again. How many rows do fit is said in one line.

    Args:
        decoder: a decoding method, bound to a model.
        requests: what is to be decoded.
        rows: in flight together, at most.

    Raises:
        EvaluationError: not even one row fits.
    """
    left = dict(enumerate(requests))
    while left:
        numbers, rows = list(left), min(rows, len(left))
        try:
            for place, made in decoder.stream([left[n] for n in numbers], rows):
                del left[numbers[place]]
                yield numbers[place], made
        except (MemoryShortageError, torch.OutOfMemoryError) as error:
            fits = min(getattr(error, "fits", rows), rows // 2)
            why = " ".join(str(error).split())[:160]
        else:
            return
        if fits < 1:
            raise EvaluationError(
                f"out of memory, even with one row in flight ({why}): lower "
                "evaluation.max_new_tokens, set training.dtype to bfloat16, or use a larger GPU; "
                "finished records are kept"
            )
        log.warning(
            "out of memory with %d rows in flight (%s): going on with %d; set "
            "evaluation.batch_size to %d", rows, why, fits, fits,
        )  # fmt: skip
        rows = fits
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
