"""Rows → encoded examples: bad rows left out and counted, in parallel, and cached.

The order is the source's own whatever the number of processes, and what follows the last example
needed is not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.config import Data, Study
from mars.data.cache import cached, tokenizer_identity
from mars.data.encoding import Message, RowError, TemplateError, encode_each, end_of_turn_id
from mars.data.examples import Examples, Report, Table
from mars.data.forms import UNREADABLE, messages_of, parse_line
from mars.data.parallel import in_order
from mars.data.sources import Chunk, DataError, Source, embedded, open_source

log = logging.getLogger(__name__)


def load_examples(
    data: Data,
    tokenizer: Tokenizer,
    stages: Iterable[int],
    seed: int,
    *,
    processes: int | None = None,
) -> Examples:
    """The examples of the given stages, in the study's order.

    Stage 1 is the first ``stage1_examples`` conversations of the source that can be trained on,
    and stage 2 the next ``stage2_examples``; example ``i`` of a stage is the same whoever asks.

    Args:
        data: where they come from.
        tokenizer: with a chat template.
        stages: 1, 2 or both.
        seed: of the toy world; other sources do not depend on it.
        processes: encoding in parallel; None: where there are many rows, as many as torch may use
            threads. It changes nothing about the result.

    Raises:
        DataError: the source, its rows or the template cannot be used, or there are too few.
    """
    stages, spans = list(stages), stage_spans(data)
    if data.source == "embedded":
        sources = ((_toy_world(data, stage, seed), spans[stage]) for stage in stages)
        tables = [
            encode_source(source, tokenizer, stop - start, data.max_length, "error", processes)
            for source, (start, stop) in sources
        ]
        rows = sum(table.report.rows for table in tables)
        joined = Table.join(tables, Report(rows))
        return Examples(joined, np.arange(len(joined)))
    source, table = load_table(data, tokenizer, processes=processes)
    for stage in stages:
        check_enough(data, source, table, stage)
    if table.report.dropped:
        log.warning("%s", dropped(source, table.report))
    return Examples(table, np.concatenate([np.arange(*spans[stage]) for stage in stages]))


def stage_spans(data: Data) -> dict[int, tuple[int, int]]:
    """Which conversations each stage has: (first, one past the last)."""
    first = data.stage1_examples
    return {1: (0, first), 2: (first, first + data.stage2_examples)}


def data_identity(data: Data, stages: Iterable[int], seed: int) -> list[str]:
    """Changes whenever what training reads does, under whatever name; no row is encoded for it.

    Of the toy world that is the code it is drawn by (``mars/embedded``) and the numbers drawn.

    Raises:
        DataError: the source is not there or cannot be read.
    """
    if data.source == "embedded":
        return [_toy_world(data, stage, seed).identity for stage in stages]
    return [open_source(data).identity]


def load_table(
    data: Data, tokenizer: Tokenizer, *, processes: int | None = None
) -> tuple[Source, Table]:
    """A source other than the toy world, and its examples of both stages, as far as it has them."""
    source = open_source(data)
    limit = data.stage1_examples + data.stage2_examples
    return source, encode_source(
        source, tokenizer, limit, data.max_length, data.on_bad_rows, processes
    )


def check_enough(data: Data, source: Source, table: Table, stage: int) -> None:
    """Raise DataError where a stage asks for more examples than there are."""
    start, stop = stage_spans(data)[stage]
    if len(table) >= stop:
        return
    has = f"the {'file' if source.unit == 'line' else 'dataset'} has {len(table)}"
    if table.report.dropped:
        has += f" that can be trained on ({dropped(source, table.report)})"
    raise DataError(
        f"{source.name}: stage {stage} needs rows {start + 1} to {stop} and {has}; "
        f"lower data.stage{stage}_examples"
    )


def dropped(source: Source, report: Report) -> str:
    """The rows left out, as one line: each kind of fault, how many, and the first."""
    kinds = "; ".join(
        f"{found.count} {kind}, first: {source.where(found.first)}: {found.message}"
        for kind, found in report.kinds()
    )
    return f"{report.lost} of {report.rows} rows dropped: {kinds}"


def check_rows(study: Study, tokenizers: Mapping[str, Tokenizer], name: str) -> list[str]:
    """Encode every row that the study trains on, as training will, and say what was left out.

    Args:
        study: the study.
        tokenizers: scale → tokenizer of its base checkpoint.
        name: the study's file, for messages.

    Returns:
        What was found, a line each; nothing where the source is the toy world.

    Raises:
        DataError: rows that cannot be trained on, where they may not be dropped, or too few.
    """
    data = study.data
    if data.source == "embedded":
        return []
    stages = sorted({stage for made in study.variants.values() for stage in made.stages})
    lines = []
    for scale, tokenizer in tokenizers.items():
        try:
            source, table = load_table(data, tokenizer)
            for stage in stages:
                check_enough(data, source, table, stage)
        except DataError as error:
            raise DataError(f"{name}: data.source: {error}") from None
        spans = stage_spans(data)
        used = sum(spans[stage][1] - spans[stage][0] for stage in stages)
        lines.append(f"data.source: {used} rows of {data.source} train scales.{scale}")
        if table.report.dropped:
            lines.append(f"data.source: {dropped(source, table.report)}")
    return lines


def _toy_world(data: Data, stage: int, seed: int) -> Source:
    start, stop = stage_spans(data)[stage]
    return embedded(start, stop - start, seed)


def encode_source(
    source: Source,
    tokenizer: Tokenizer,
    limit: int,
    max_length: int,
    on_bad_rows: str,
    processes: int | None = None,
) -> Table:
    """The first ``limit`` rows of a source that can be trained on, from the cache where it may be.

    Raises:
        DataError: the template is at fault, or a row that may not be dropped.
    """
    parts = {
        "source": source.identity,
        "tokenizer": tokenizer_identity(tokenizer),
        "end_of_turn": end_of_turn_id(tokenizer),
        "limit": limit,
        "max_length": max_length,
        "on_bad_rows": on_bad_rows,
    }

    def make() -> Table:
        gathered = _Gathered(source, limit, on_bad_rows)
        work = partial(_encode_chunk, max_length=max_length, distinct=source.distinct)
        try:
            for chunk in in_order(work, source.chunks(), tokenizer, processes):
                gathered.add(chunk)
                if gathered.full:
                    break
        except TemplateError as error:
            raise DataError(f"{source.name}: {error}") from None
        return gathered.table()

    return cached(parts, make)


# --------------------------------------------------------------------------- one chunk


@dataclass(frozen=True)
class Encoding:
    """One chunk of rows, encoded.

    Attributes:
        numbers: of its rows, in order.
        faults: by place in the chunk: what is wrong.
        table: the other rows.
        digests: of their conversations; empty where no two can be alike.
    """

    numbers: list[int]
    faults: dict[int, RowError]
    table: Table
    digests: list[bytes]


def _encode_chunk(
    tokenizer: Tokenizer, chunk: Chunk, *, max_length: int, distinct: bool
) -> Encoding:
    """Encode numbered raw rows. Raises TemplateError."""
    numbers = [number for number, _ in chunk]
    faults: dict[int, RowError] = {}
    told: list[tuple[int, list[Message]]] = []
    for place, (_, raw) in enumerate(chunk):
        try:
            told.append((place, messages_of(parse_line(raw) if isinstance(raw, bytes) else raw)))
        except RowError as error:
            faults[place] = error
    kept, examples, digests = [], [], []
    each = encode_each(tokenizer, [messages for _, messages in told], max_length)
    for (place, messages), found in zip(told, each, strict=True):
        if isinstance(found, RowError):
            faults[place] = found
            continue
        kept.append(numbers[place])
        examples.append(found)
        if not distinct:
            digests.append(_digest(messages))
    return Encoding(numbers, faults, Table.of(examples, kept, Report()), digests)


def _digest(messages: list[Message]) -> bytes:
    text = json.dumps(messages, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


# --------------------------------------------------------------------------- chunks, gathered


class _Gathered:
    """Chunks in order, until there are enough examples."""

    def __init__(self, source: Source, limit: int, on_bad_rows: str) -> None:
        self.source, self.limit, self.on_bad_rows = source, limit, on_bad_rows
        self.report = Report()
        self.parts: list[Table] = []
        self.count = 0
        self.seen: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        return self.count >= self.limit

    def add(self, chunk: Encoding) -> None:
        """Take a chunk's good rows, up to the limit, and count the bad ones before it."""
        if not self.count and not len(chunk.table):
            self._refuse_unknown_form(chunk)
        taken, place = [], 0  # places in the chunk's table
        for at, number in enumerate(chunk.numbers):
            if self.count >= self.limit:
                break
            self.report.rows += 1
            error = chunk.faults.get(at)
            if error is None:
                place += 1
                error = self._repeats(chunk, place - 1, number)
            if error is None:
                taken.append(place - 1)
                self.count += 1
            elif self.on_bad_rows == "error":
                raise DataError(f"{self.source.where(number)}: {error}")
            else:
                self.report.drop(number, error)
        whole = len(taken) == len(chunk.table)
        self.parts.append(chunk.table if whole else _select(chunk.table, taken))

    def _repeats(self, chunk: Encoding, place: int, number: int) -> RowError | None:
        if not chunk.digests:
            return None
        first = self.seen.setdefault(chunk.digests[place], number)
        if first == number:
            return None
        unit = self.source.unit
        return RowError("repeated", f"the same conversation as {unit} {first}; drop the row")

    def _refuse_unknown_form(self, chunk: Encoding) -> None:
        """A file of which nothing at all can be read is no matter of single rows."""
        if not self.report.rows and {e.kind for e in chunk.faults.values()} <= UNREADABLE:
            first = chunk.numbers[min(chunk.faults)]
            error = chunk.faults[min(chunk.faults)]
            raise DataError(f"{self.source.where(first)}: {error}")

    def table(self) -> Table:
        return Table.join(self.parts, self.report)


def _select(table: Table, places: list[int]) -> Table:
    return Table.of([table[i] for i in places], [int(table.row[i]) for i in places], Report())
