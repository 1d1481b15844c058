"""The judge reads whatever a program's process writes: as plain data, or not at all."""

from __future__ import annotations

import contextlib
import json
from types import NoneType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.evaluation.sandbox.inside import plain

PLAIN = (NoneType, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set)
PLAIN += (frozenset, range, type(iter([])), *plain.VIEWS.values())
TAGS = st.sampled_from(
    [
        "list",
        "dict",
        "set",
        "tuple",
        "frozenset",
        "iterator",
        "bytes",
        "bytearray",
        "int",
        "seen",
        "complex",
        "range",
        "keys",
        "values",
        "items",
        "object",
        "eval",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | TAGS
NODES = st.recursive(
    SCALARS,
    lambda node: (
        st.lists(node, max_size=4)
        | st.tuples(TAGS, st.lists(node, max_size=4)).map(list)
        | st.dictionaries(st.text(max_size=3), node, max_size=3)
    ),
    max_leaves=12,
)
COMPLEX = st.complex_numbers(allow_nan=False)
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | COMPLEX
VALUES = st.recursive(
    HASHABLE | st.floats(allow_nan=False) | st.frozensets(HASHABLE, max_size=3),
    lambda value: (
        st.lists(value, max_size=3)
        | st.lists(value, max_size=3).map(tuple)
        | st.dictionaries(HASHABLE, value, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=10,
)


def passed_on(value: Any) -> Any:
    return plain.Reader([]).value(plain.loads(plain.dumps(plain.Writer([]).node(value))))


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = passed_on([value])
    assert arrived == [value]
    assert type(arrived[0]) is type(value)


@settings(max_examples=200, deadline=None)
@given(NODES)
def test_any_message_gives_plain_data_or_is_refused(node: Any) -> None:
    try:
        value = plain.Reader([]).value(plain.loads(json.dumps(node).encode()))
    except plain.NotPlainError:
        return
    assert type(value) in PLAIN


@settings(max_examples=100, deadline=None)
@given(NODES, st.integers(-2, 3) | SCALARS)
def test_any_change_is_made_or_refused(node: Any, number: Any) -> None:
    table: list[Any] = [[1], {1: 2}, {3}]
    kinds = [type(value) for value in table]
    with contextlib.suppress(plain.NotPlainError):
        plain.Reader(table).update(number, node)
    assert [type(value) for value in table[:3]] == kinds


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"nul", b'"\\ud8"'],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.Reader([]).value(plain.loads(body))


def test_deep_data_is_refused() -> None:
    deep: Any = []
    for _ in range(plain.DEPTH + 5):
        deep = [deep]
    with pytest.raises(plain.NotPlainError, match="too deeply"):
        plain.Writer([]).node(deep)
    node: Any = None
    for _ in range(plain.DEPTH + 5):
        node = ["tuple", [node]]
    with pytest.raises(plain.NotPlainError):
        plain.Reader([]).value(node)


def test_long_messages_are_refused() -> None:
    with pytest.raises(plain.NotPlainError, match="4 MB"):
        plain.dumps("x" * (plain.LIMIT_BYTES + 1))
