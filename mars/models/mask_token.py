"""Where ``[MASK]`` goes: a row of the embedding that costs no parameters, wherever there is one."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.models.files import CheckpointError

log = logging.getLogger(__name__)

OWN = "<|mask|>"
"""What the paper's released checkpoints call it."""

# In brackets, or it is a word. <empty_output>: SmolLM2 names its markers of code repositories, and
# never trained this one.
_RESERVED = re.compile(
    r"[<\[]\|?(reserved|unused|extra_\d)[^\s<>\[\]]*[>\]]|>>(reserved|unused)\w*<<|<empty_output>",
    re.IGNORECASE,
)


def highest_id(tokenizer: Tokenizer) -> int:
    """The largest token id the tokenizer can produce."""
    return max(tokenizer.get_vocab().values())


def mask_token_id(model: PreTrainedModel, tokenizer: Tokenizer) -> int:
    """The id of ``[MASK]``: the recorded one, the tokenizer's own, a spare row, a reserved token.

    Only where there is none of these, the table grows by a row. The id is recorded as
    ``model.config.mask_token_id``, so that a checkpoint keeps its own, and what it is as
    ``model.config.mask_token_source``.

    Raises:
        CheckpointError: the id is beyond the embedding.
    """
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    recorded = getattr(model.config, "mask_token_id", None)
    if recorded is not None:
        return _within(int(recorded), rows, "config.json")
    chosen, source = _choose(tokenizer, rows)
    if source == "new row":
        _warn_of_growth(chosen + 1)
        _add_row(model, chosen + 1)
    model.config.mask_token_id = _within(chosen, max(rows, chosen + 1), "its tokenizer")
    model.config.mask_token_source = source
    return chosen


def told_mask_token(config: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[int, str]:
    """What ``mask_token_id`` will find, without the weights: the id, and what it is.

    Args:
        config: of the checkpoint's config.json.
        tokenizer: the checkpoint's.

    Raises:
        CheckpointError: the id is beyond the embedding.
    """
    rows = int(config.get("vocab_size") or highest_id(tokenizer) + 1)
    recorded = config.get("mask_token_id")
    if recorded is None:
        return _choose(tokenizer, rows)
    return int(recorded), str(config.get("mask_token_source") or "config.json")


def _choose(tokenizer: Tokenizer, rows: int) -> tuple[int, str]:
    """The id, and what it is."""
    vocabulary = tokenizer.get_vocab()
    own = getattr(tokenizer, "mask_token", None) or OWN
    if own in vocabulary:
        return _within(vocabulary[own], rows, "its tokenizer"), f"token {own}"
    spare = highest_id(tokenizer) + 1
    if spare < rows:
        return spare, "spare row"
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    reserved = [  # special ones first
        (i not in special, i, token)
        for token, i in vocabulary.items()
        if _RESERVED.fullmatch(token)
    ]
    if reserved:
        _, chosen, token = min(reserved)
        return chosen, f"reserved token {token}"
    return spare, "new row"


def _within(chosen: int, rows: int, whose: str) -> int:
    if not 0 <= chosen < rows:
        raise CheckpointError(
            f"the mask token of {whose} is {chosen} and the embedding has {rows} rows; "
            "they belong to different checkpoints"
        )
    return chosen


@cache
def _warn_of_growth(rows: int) -> None:
    """Once a process, however often the model is loaded."""
    log.warning("no spare embedding row for [MASK]: the table grows by one row to %d", rows)


def _add_row(model: PreTrainedModel, rows: int) -> None:
    """Grow the table, its new row the mean of the others: the same in every process."""
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            weight: Any = getattr(table, "weight", None)
            if weight is not None:
                weight[-1] = weight[:-1].double().mean(0).to(weight.dtype)
