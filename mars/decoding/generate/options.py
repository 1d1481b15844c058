"""What can be asked of `mars.generate`, and what it means for a checkpoint."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from mars.config import CacheName, Decoding, Rule
from mars.config.sections import DecoderName
from mars.decoding.contract import DecodingError
from mars.decoding.costs import CostTable
from mars.decoding.generate.opening import Linears

log = logging.getLogger(__name__)

Conversation = Sequence[Mapping[str, str]]
"""Chat messages: {"role": …, "content": …}."""
Prompts = str | Sequence[str | Conversation] | Conversation

DEFAULT_TAU = 0.95
DEFAULT_BLOCK = 4


class Options(TypedDict, total=False):
    """Keyword arguments of `mars.generate` and `mars.stream`; each has a default.

    Keys:
        tokenizer: of a loaded model.
        tau: threshold, one for all or one a prompt; default 0.95. 1 is one token a step.
        block_size: tokens drafted a step; default: what the checkpoint was trained with.
        decoder: default: the method that the checkpoint was trained for, else mars.
        rule: acceptance rule; default probability.
        cache: cursor (default), block or none; cache_block: B_cache of block.
        draft: B (default), or auto: no longer than pays by ``costs``.
        costs: for ``draft="auto"``: a table or its file; default: measured once and kept.
        max_new_tokens: default 256.
        temperature: 0 (default) is greedy; seed: of the samples, default 0.
        stop: sequences that end an answer, which does not include them.
        slots: prompts in flight; default: all, up to 32.
        dtype: default float32, on a GPU bfloat16; device: default a GPU where there is one.
        linears: packed for oneDNN, stock, or auto (default): what measures faster on this CPU.
        threads: of torch on the CPU; default: as they are.
    """

    tokenizer: Any
    tau: float | Sequence[float] | None
    block_size: int | None
    decoder: DecoderName | None
    rule: Rule
    cache: CacheName
    cache_block: int | None
    draft: Literal["B", "auto"]
    costs: CostTable | str | Path | None
    max_new_tokens: int
    temperature: float
    seed: int
    stop: str | Sequence[str]
    slots: int | None
    dtype: str | None
    device: str | None
    linears: Linears | None
    threads: int | None


def check_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that is none of ``Options``."""
    for name in options:
        if name not in Options.__annotations__:
            near = difflib.get_close_matches(name, Options.__annotations__, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "help(mars.Options) lists them"
            raise TypeError(f"mars.generate has no option {name!r}; {hint}")


def conversations(prompts: Prompts) -> tuple[list[Conversation], bool]:
    """The prompts as chats, and whether only one answer is expected.

    A text is what the user says; a list of messages is one chat.
    """
    if isinstance(prompts, str):
        return [[{"role": "user", "content": prompts}]], True
    if not isinstance(prompts, Sequence):
        raise DecodingError(f"prompts: a {type(prompts).__name__}: give a text or a list")
    if prompts and all(isinstance(prompt, Mapping) for prompt in prompts):
        return [_checked(prompts, "prompts")], True
    chats: list[Conversation] = []
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            chats.append([{"role": "user", "content": prompt}])
        else:
            chats.append(_checked(prompt, f"prompt {number}"))
    return chats, False


def _checked(chat: Any, where: str) -> Conversation:
    shape = 'give a text, or messages as {"role": "user", "content": "…"}'
    if not isinstance(chat, Sequence) or not chat:
        raise DecodingError(f"{where}: {chat!r} is no prompt: {shape}")
    for message in chat:
        texts = isinstance(message, Mapping) and [message.get(k) for k in ("role", "content")]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DecodingError(f"{where}: {message!r} is no message: {shape}")
    if chat[-1]["role"] == "assistant":
        raise DecodingError(f"{where}: the assistant has the last word: end with the user's")
    return chat  # type: ignore[no-any-return]


def thresholds(tau: float | Sequence[float] | None, count: int) -> list[float | None]:
    """One threshold a prompt; None where the decoder's own holds."""
    if tau is None or isinstance(tau, int | float):
        return [tau] * count
    taus: list[float | None] = list(tau)
    if len(taus) != count:
        raise DecodingError(
            f"tau has {len(taus)} values for {count} prompts: give one, or one a prompt"
        )
    return taus


def decoding(recipe: Mapping[str, Any], taus: Sequence[float | None], **wished: Any) -> Decoding:
    """The decoding settings that suit a checkpoint.

    Args:
        recipe: of the checkpoint's ``mars.json``; empty for one from elsewhere.
        taus: the threshold of each prompt.
        wished: of ``Decoding``; None where the checkpoint or the method decides.
    """
    trained = recipe.get("settings", {})
    objective = trained.get("objective")
    own = "block_diffusion" if objective == "block_diffusion" else "mars"
    default = trained.get("decoder", own)  # what a plug-in trained says what reads it
    decoder, size = wished.pop("decoder") or default, wished.pop("block_size")
    if size is None:
        size = _block_size(decoder, trained, drafts=any(tau is None or tau < 1 for tau in taus))
    if decoder == objective == "block_diffusion":
        wished["alignment"] = trained["alignment"]
    given = {tau for tau in taus if tau is not None}
    exact = decoder in ("ar", "jacobi")
    tau = given.pop() if len(given) == 1 else 1.0 if exact else DEFAULT_TAU
    return parse_decoding(decoder=decoder, block_size=size, tau=tau, **wished)


def _block_size(decoder: str, trained: Mapping[str, Any], drafts: bool) -> int:
    """What the checkpoint was trained with; else a usual one, with a warning where that matters."""
    if decoder == "ar":
        return 1
    if decoder == trained.get("decoder", trained.get("objective")):  # the two go by one name
        return int(trained["block_size"])
    if decoder != "jacobi" and drafts:
        log.warning(
            "no %s training is recorded with this checkpoint: the %d tokens drafted a step cost "
            "quality; decoder ar drafts none",
            decoder, DEFAULT_BLOCK,
        )  # fmt: skip
    return DEFAULT_BLOCK


def parse_decoding(**values: Any) -> Decoding:
    """Decoding settings, or one line about the first that is wrong."""
    try:
        return Decoding(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise DecodingError(f"{name}: {problem['msg']}, got {problem['input']!r}") from None
