"""Where in a text the accepted tokens lie: one span of a record's output for each forward.

Records keep text and accepted counts, no token ids, so the output is tokenised again with the
checkpoint's own tokenizer. A record whose text does not come to the tokens that were counted is
not shown at all: a colour in the wrong place would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from mars.analysis.results import run_folder
from mars.config import Study

STOP_TOKENS = 4
"""Tokens of a stop sequence that a record may count and its text leave out, at most."""


class Span(NamedTuple):
    """The text that one forward accepted, and how many tokens it accepted.

    ``text`` is empty where a forward accepted only the end of turn, a stop sequence, or the rest
    of a character that the forward before began.
    """

    text: str
    accepted: int


def spans(record: Mapping[str, Any], tokenizer: Tokenizer) -> list[Span] | None:
    """One span for each forward of a record, in order; their texts join to its output.

    Args:
        record: with ``output``, ``tokens``, ``accepted`` and ``finish``.
        tokenizer: of the checkpoint that wrote it.

    Returns:
        The spans, or None where the text is not kept, or its tokens are not those counted.
    """
    output, accepted = record.get("output"), record.get("accepted")
    accepted = [] if accepted is None else [int(count) for count in accepted]
    if not isinstance(output, str) or not output or sum(accepted) != record["tokens"]:
        return None
    tokens = encoded(record, tokenizer)
    if tokens is None:
        return None
    ends = [end for _, end in tokens.offsets]
    found, start, at = [], 0, 0
    for count in accepted:
        at += count
        end = len(output) if at >= len(ends) else ends[at - 1]
        found.append(Span(output[start:end], count))
        start = end
    return found


def encoded(record: Mapping[str, Any], tokenizer: Tokenizer) -> Encoding | None:
    """The tokens of a record's text, an end of turn or stop left out; None if they do not add up.

    Args:
        record: with ``output``, ``tokens`` and ``finish``.
        tokenizer: of the checkpoint that wrote it.
    """
    found = tokenizer.encode(record["output"], add_special_tokens=False)
    return found if len(found.ids) in _lengths(record) else None


def _lengths(record: Mapping[str, Any]) -> range:
    """How many tokens of a record its text may hold: an end of turn or a stop is not shown."""
    tokens = int(record["tokens"])
    if record["finish"] == "end_of_turn":
        return range(tokens - 1, tokens)
    if record["finish"] == "stop":
        return range(max(0, tokens - STOP_TOKENS), tokens + 1)
    return range(tokens, tokens + 1)


def tokenizer_of(
    study: Study, results: Path, seed: int, scale: str, variant: str
) -> Tokenizer | None:
    """The tokenizer of a run's checkpoint; None where its ``tokenizer.json`` is not at hand.

    The base and checkpoints from elsewhere have the tokenizer of the scale's base.
    """
    folders = [run_folder(results, seed, scale, variant) / "model"]
    at = study.scales[scale]
    for ref in filter(None, [at.released.get(variant), at.base]):
        folders += _folders(study, ref)
    for folder in folders:
        path = folder / "tokenizer.json"
        if path.is_file():
            return _load(path, path.stat().st_mtime_ns)
    return None


def _folders(study: Study, ref: str) -> list[Path]:
    """Where the files of a reference may lie: with the project, in a folder, in the data root."""
    if ref.startswith("embedded:"):
        name = ref.removeprefix("embedded:")
        return [Path(__file__).parents[1] / "embedded" / "checkpoints" / name]
    root = [Path(study.data_root) / "models" / ref] if study.data_root else []
    return [Path(ref), *root]


@lru_cache(maxsize=16)
def _load(path: Path, stamp: int) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing narrower; without it, no spans are shown
        return None
