"""Where conversations come from: the toy world, or a JSONL file of ``{"messages": [...]}``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.config import Data, Study
from mars.data.encoding import Encoded, RowError, encode_all


class DataError(ValueError):
    """Training data that cannot be used; one line naming the file, the line and the remedy."""


def load_examples(
    data: Data, tokenizer: Tokenizer, stages: Iterable[int], seed: int
) -> list[Encoded]:
    """The examples of the given stages, in the study's order.

    Stage 1 is conversations ``[0, stage1_examples)`` of the source and stage 2 the next
    ``stage2_examples``; example ``i`` of a stage is the same whoever asks.
    """
    spans = {
        1: (0, data.stage1_examples),
        2: (data.stage1_examples, data.stage1_examples + data.stage2_examples),
    }
    found: list[Encoded] = []
    for stage in stages:
        start, stop = spans[stage]
        if data.source == "embedded":
            rows = _embedded(start, stop, seed)
            where = [f"embedded conversation {start + i}" for i in range(len(rows))]
        else:
            rows, where = _jsonl(Path(data.source), start, stop, stage)
        try:
            found += encode_all(tokenizer, rows, data.max_length)
        except RowError as error:
            raise DataError(f"{where[error.index]}: {error}") from None
    return found


def check_rows(study: Study, tokenizers: Mapping[str, Tokenizer], name: str) -> list[str]:
    """Encode every row of a JSONL source that the study trains on, as training will.

    Args:
        study: the study.
        tokenizers: scale → tokenizer of its base checkpoint.
        name: the study's file, for messages.

    Returns:
        What was found, a line each; nothing where the source is the toy world.

    Raises:
        DataError: a row that cannot be trained on, or too few rows.
    """
    if study.data.source == "embedded":
        return []
    stages = sorted({stage for made in study.variants.values() for stage in made.stages})
    lines = []
    for scale, tokenizer in tokenizers.items():
        try:
            rows = len(load_examples(study.data, tokenizer, stages, seed=0))
        except DataError as error:
            raise DataError(f"{name}: data.source: {error}") from None
        lines.append(f"data.source: {rows} rows of {study.data.source} train scales.{scale}")
    return lines


def _embedded(start: int, stop: int, seed: int) -> list[Any]:
    from mars.embedded import corpus

    drawn = corpus.conversations("sft", stop - start, seed, start=start)
    return [conversation["messages"] for conversation in drawn]


def _jsonl(file: Path, start: int, stop: int, stage: int) -> tuple[list[Any], list[str]]:
    """Rows ``[start, stop)`` of a file (blank lines do not count), and where each stands."""
    rows, where = [], []
    try:
        with file.open(encoding="utf-8") as stream:
            lines = ((n, line) for n, line in enumerate(stream, start=1) if line.strip())
            for number, line in islice(lines, start, stop):
                where.append(f"{file}, line {number}")
                row = json.loads(line)
                if not isinstance(row, dict) or "messages" not in row:
                    raise DataError(f"{where[-1]}: no 'messages'; each line is a JSON object")
                rows.append(row["messages"])
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; set data.source to a JSONL file") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{where[-1]}: not JSON ({error.msg}); each line is an object") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    if len(rows) < stop - start:
        raise DataError(
            f"{file}: stage {stage} needs rows {start + 1} to {stop} and the file has "
            f"{start + len(rows)}; lower data.stage{stage}_examples"
        )
    return rows, where
