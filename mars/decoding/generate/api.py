"""`mars.generate` and `mars.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import torch

from mars.config import CacheName, Rule
from mars.config.sections import DecoderName
from mars.decoding.contract import DecodingError, Request
from mars.decoding.costs import CostTable
from mars.decoding.generate import options as asked
from mars.decoding.generate.opening import Linears, locate
from mars.decoding.generate.options import Conversation, Options, Prompts
from mars.decoding.generate.run import MOST_SLOTS, Answer, Run
from mars.decoding.generate.tables import cost_table
from mars.decoding.make import check_settings, make_decoder


@overload
def generate(model: Any, prompts: str, **options: Unpack[Options]) -> Answer: ...
@overload
def generate(
    model: Any, prompts: Sequence[str] | Sequence[Conversation], **options: Unpack[Options]
) -> list[Answer]: ...
@overload
def generate(model: Any, prompts: Prompts, **options: Unpack[Options]) -> Answer | list[Answer]: ...
def generate(model: Any, prompts: Prompts, **options: Unpack[Options]) -> Answer | list[Answer]:
    """Have a checkpoint answer one prompt or several.

    >>> mars.generate("embedded:toy-s", "How many …?", tau=0.9).text
    >>> mars.generate(model, ["One?", "Two?"], tokenizer=tokenizer, tau=[1, 0.7])

    Args:
        model: a checkpoint folder, ``embedded:<name>``, or a loaded causal LM of transformers
            (with ``tokenizer=``), which is put in evaluation mode.
        prompts: what the user says, or a list of chat messages: one answer; a list of either:
            a list of answers, decoded together. The chat template is applied.
        **options: see ``mars.Options``, of which the first are ``tau`` and ``block_size``.

    Raises:
        DecodingError, CheckpointError, TypeError: one line that says what to do.
    """
    run, single = _prepared(model, prompts, options)
    answers = run.answers()
    return answers[0] if single else answers


def stream(model: Any, prompts: Prompts, **options: Unpack[Options]) -> Iterator[tuple[int, str]]:
    """As ``generate``, but yield (prompt number, new text) as it comes.

    A prompt's texts concatenate to its answer's; none ends within a character.
    """
    run, _ = _prepared(model, prompts, options)
    return ((piece.number, piece.text) for piece in run.pieces() if piece.text)


def _prepared(model: Any, prompts: Prompts, options: Options) -> tuple[Run, bool]:
    asked.check_names(options)
    chats, single = asked.conversations(prompts)
    return prepare(model, chats, **options), single


def prepare(
    model: Any,
    chats: Sequence[Conversation],
    *,
    tokenizer: Any = None,
    tau: float | Sequence[float] | None = None,
    block_size: int | None = None,
    decoder: DecoderName | None = None,
    rule: Rule = "probability",
    cache: CacheName = "cursor",
    cache_block: int | None = None,
    draft: Literal["B", "auto"] = "B",
    costs: CostTable | str | Path | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    slots: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    linears: Linears | None = None,
    threads: int | None = None,
) -> Run:
    """Everything up to the first forward: settings checked, checkpoint loaded, prompts encoded.

    Arguments are those of ``generate``; ``Options`` says what they mean.
    """
    for name, value in (("slots", slots), ("threads", threads)):
        if value is not None and value < 1:
            raise DecodingError(f"{name} is {value}: it must be at least 1")
    if threads is not None:
        torch.set_num_threads(threads)
    taus = asked.thresholds(tau, len(chats))
    at = locate(model, tokenizer, dtype, device, linears)
    settings = asked.decoding(
        at.recipe,
        taus,
        block_size=block_size,
        decoder=decoder,
        rule=rule,
        cache=cache,
        cache_block=cache_block,
        draft=draft,
        temperature=temperature,
    )
    check_settings(settings)
    opened = at.open()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    requests = [
        Request(_ids(opened.tokenizer, chat), max_new_tokens, stops, tau)
        for chat, tau in zip(chats, taus, strict=True)
    ]
    rows = min(slots or MOST_SLOTS, max(1, len(requests)))
    table = None
    if settings.draft == "auto":
        table = (
            cost_table(*opened, settings.block_size, rows)
            if costs is None
            else costs
            if isinstance(costs, CostTable)
            else CostTable.load(Path(costs))
        )
    elif costs is not None:
        raise DecodingError('costs are of use to draft="auto" only: set it, or leave costs out')
    generator = torch.Generator(opened.model.device).manual_seed(seed) if temperature else None
    bound = make_decoder(opened.model, opened.tokenizer, settings, generator=generator, costs=table)
    return Run(bound, opened.tokenizer, requests, rows)


def _ids(tokenizer: Any, chat: Conversation) -> tuple[int, ...]:
    """The chat, up to where the assistant begins to speak."""
    messages = [dict(message) for message in chat]
    return tuple(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )
