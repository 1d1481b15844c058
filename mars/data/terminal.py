"""`mars data` on a terminal, or piped: colours there, plain marks here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

WIDTH = 40
"""Characters of the longest bar."""

_DIM, _BLOCKS, _PLAIN = "\x1b[2m", ("\x1b[30;46m", "\x1b[30;42m"), "\x1b[0m"
_OPEN, _BETWEEN, _CLOSE = "⟦", "│", "⟧"


def page(told: Mapping[str, Any], colour: bool) -> str:
    """What ``preview`` found, as text. With ``colour``, blocks alternate in two of them."""
    lines = [f"{told['source']}, at most {told['max_length']} tokens a conversation", ""]
    lines += _table(told["stages"])
    lines += _dropped(told)
    for stage, found in told["stages"].items():
        for title, key in (("tokens", "lengths"), ("tokens with loss", "response_lengths")):
            lines += ["", f"stage {stage}: {title} of a conversation", *_bars(found[key])]
        for example in found["examples"]:
            lines += ["", *_example(stage, example, told, colour)]
    return "\n".join(lines) + "\n"


_COUNTS = {
    "conversations": "conversations",
    "responses": "responses",
    "tokens": "tokens",
    "prompt_tokens": "without loss",
    "response_tokens": "with loss",
    "cut": "cut",
}


def _table(stages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "         " + "".join(f"{name:>15}" for name in _COUNTS.values())
    for stage, found in stages.items():
        yield f"stage {stage:<3}" + "".join(f"{found[key]:>15,}" for key in _COUNTS)


def _dropped(told: Mapping[str, Any]) -> Iterator[str]:
    if "rows" not in told:
        return
    yield ""
    if not told["dropped"]:
        yield f"{told['rows']:,} {told['unit']}s read, none dropped"
        return
    lost = sum(found["count"] for found in told["dropped"].values())
    yield f"{told['rows']:,} {told['unit']}s read, {lost:,} dropped:"
    for kind, found in told["dropped"].items():
        yield f"{found['count']:>9,}  {kind}; first: {found['first']}: {found['message']}"


def _bars(bars: list[tuple[int, int, int]]) -> Iterator[str]:
    most = max((count for *_, count in bars), default=0)
    for first, last, count in bars:
        bar = "█" * -(-count * WIDTH // most)
        yield f"{f'{first}–{last}':>13} {bar}{' ' if bar else ''}{count:,}"


def _example(
    stage: str, example: Mapping[str, Any], told: Mapping[str, Any], colour: bool
) -> Iterator[str]:
    tokens = len(example["ids"])
    loss = sum(turn >= 0 for turn in example["turn"])
    phases = ", ".join(map(str, example["phases"]))
    yield (
        f"stage {stage}, example {example['index']} ({told['unit']} {example['row']}): {tokens} "
        f"tokens, {loss} with loss in blocks of {told['block_size']}, phase {phases}"
        f"{'' if example['ended'] else '; cut'}"
    )
    yield rendered(example["pieces"], colour)


def rendered(pieces: list[tuple[int, str]], colour: bool) -> str:
    """A conversation; its tokens with loss in ⟦block│block⟧, or in two colours by block."""
    text = []
    for turn, members in groupby(pieces, key=lambda piece: piece[0]):
        parts = [_visible(part) for _, part in members]
        if not colour:
            said = _BETWEEN.join(parts)
            text.append(f"{_OPEN}{said}{_CLOSE}" if turn >= 0 else said)
        elif turn < 0:
            text += [f"{_DIM}{part}{_PLAIN}" for part in parts]
        else:
            text += [f"{_BLOCKS[i % 2]}{part}{_PLAIN}" for i, part in enumerate(parts)]
    return "".join(text)


def _visible(text: str) -> str:
    """What would steer a terminal, escaped: the text comes from somewhere."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
