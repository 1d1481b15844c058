"""Plain data between the judge and the candidate: values in JSON, read strictly.

Exact builtin types only, so that nothing a program made answers to `==`, `len` or `bool` on the
judge's side. A subclass travels as its base type, an iterator as the list of what it gives.
Containers that can change keep their identity: each has a number, in the order in which both
sides first meet it, and is named by it afterwards. So the judge sees what a call did to its
arguments, a list returned is the list that was passed, and cycles are nothing special.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from itertools import islice
from typing import Any

LIMIT_BYTES = 4 << 20
"""A longer message is refused."""
DEPTH = 100
"""Deeper nesting is refused."""
ITERATOR_ITEMS = 100_000
"""More items are not taken from an iterator, which may be endless."""
SMALL = 1 << 62
"""Greater integers travel as hexadecimal text: decimal conversion is slow and limited."""
CHANGEABLE = (list, dict, set, bytearray)
VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}


class NotPlainError(Exception):
    """A value or a message that is no plain data; its text says which."""


def dumps(node: Any) -> bytes:
    """A message. Raises NotPlainError where it is too long."""
    body = json.dumps(node, separators=(",", ":")).encode()
    if len(body) > LIMIT_BYTES:
        raise NotPlainError(f"more than {LIMIT_BYTES >> 20} MB of data")
    return body


def loads(body: bytes) -> Any:
    """The nodes of a message. Raises NotPlainError where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotPlainError("a message that cannot be read") from None


class Writer:
    """Turns values into nodes; `table` holds the changeable containers met so far."""

    def __init__(self, table: list[Any]) -> None:
        self.table = table
        self.numbers = {id(value): number for number, value in enumerate(table)}

    def node(self, value: Any, depth: int = 0) -> Any:
        """The node of a value. Raises NotPlainError."""
        if value is None or type(value) in (bool, float, str):
            return value
        if depth > DEPTH:
            raise NotPlainError("data nested too deeply")
        if isinstance(value, int):
            value = int.__int__(value)
            return value if -SMALL < value < SMALL else ["int", hex(value)]
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, CHANGEABLE):
            number = self.numbers.get(id(value))
            if number is not None:
                return ["seen", number]
            self.numbers[id(value)] = len(self.table)
            self.table.append(value)
            return self.content(value, depth)
        return self._fixed(value, depth)

    def content(self, value: Any, depth: int = 0) -> list[Any]:
        """The node of a changeable container, whether it was met before or not."""
        if isinstance(value, list):
            return ["list", [self.node(item, depth + 1) for item in list.__iter__(value)]]
        if isinstance(value, dict):
            flat = [part for item in dict.items(value) for part in item]
            return ["dict", [self.node(part, depth + 1) for part in flat]]
        if isinstance(value, set):
            return ["set", [self.node(item, depth + 1) for item in set.__iter__(value)]]
        return ["bytearray", bytes(value).hex()]

    def _fixed(self, value: Any, depth: int) -> list[Any]:
        if isinstance(value, tuple):
            return ["tuple", [self.node(item, depth + 1) for item in tuple.__iter__(value)]]
        if isinstance(value, frozenset):
            items = [self.node(item, depth + 1) for item in frozenset.__iter__(value)]
            return ["frozenset", items]
        if isinstance(value, bytes):
            return ["bytes", bytes.hex(value)]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if type(value) is range:
            return ["range", *(self.node(n) for n in (value.start, value.stop, value.step))]
        for name, view in VIEWS.items():
            if type(value) is view:
                mapping = value.mapping.copy()  # type: ignore[attr-defined]
                return [name, self.node(mapping, depth + 1)]
        if hasattr(type(value), "__next__"):
            items = list(islice(value, ITERATOR_ITEMS + 1))
            if len(items) > ITERATOR_ITEMS:
                raise NotPlainError(f"an iterator of more than {ITERATOR_ITEMS} items")
            return ["iterator", [self.node(item, depth + 1) for item in items]]
        raise NotPlainError(f"a {type(value).__name__}, which is no plain data")


class Reader:
    """Turns nodes into values; `table` holds the changeable containers met so far."""

    def __init__(self, table: list[Any]) -> None:
        self.table = table

    def value(self, node: Any) -> Any:
        """The value of a node. Raises NotPlainError where it is none."""
        try:
            return self._value(node, 0)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError):
            raise NotPlainError("a value that cannot be read") from None

    def update(self, number: int, node: Any) -> None:
        """Give a container of the table the content of a node. Raises NotPlainError."""
        try:
            kept = self.table[operator.index(number)]
            if node[0] != type(kept).__name__:
                raise ValueError
            self._fill(kept, node, 0)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError):
            raise NotPlainError("a change that cannot be read") from None

    def _value(self, node: Any, depth: int) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        if depth > DEPTH + 1 or type(node) is not list:
            raise ValueError
        tag = node[0]
        if tag == "seen":
            number = node[1]
            if type(number) is not int or number < 0:
                raise ValueError
            return self.table[number]
        for kind in CHANGEABLE:
            if tag == kind.__name__:
                made: Any = kind()
                self.table.append(made)
                self._fill(made, node, depth)
                return made
        return self._fixed(tag, node[1:], depth)

    def _items(self, nodes: Any, depth: int) -> list[Any]:
        if type(nodes) is not list:
            raise ValueError
        return [self._value(node, depth + 1) for node in nodes]

    def _fill(self, kept: Any, node: list[Any], depth: int) -> None:
        if isinstance(kept, bytearray):
            kept[:] = bytes.fromhex(node[1])
            return
        items = self._items(node[1], depth)
        if isinstance(kept, list):
            kept[:] = items
        else:
            kept.clear()
            kept.update(
                zip(items[::2], items[1::2], strict=True) if isinstance(kept, dict) else items
            )

    def _fixed(self, tag: str, parts: list[Any], depth: int) -> Any:
        if tag in ("tuple", "frozenset", "iterator"):
            items = self._items(parts[0], depth)
            return {"tuple": tuple, "frozenset": frozenset, "iterator": iter}[tag](items)  # type: ignore[operator]
        if tag in VIEWS:
            mapping = self._value(parts[0], depth + 1)
            if type(mapping) is not dict:
                raise ValueError
            return getattr(mapping, tag)()
        if tag == "int":
            return int(parts[0], 16)
        if tag == "bytes":
            return bytes.fromhex(parts[0])
        if tag == "complex":
            real, imaginary = parts
            if {type(real), type(imaginary)} != {float}:
                raise ValueError
            return complex(real, imaginary)
        if tag == "range":
            return range(*self._items(parts, depth))
        raise ValueError


def snapshot(table: list[Any]) -> list[Any]:
    """What changeable containers hold now, to see later which of them changed."""
    return [_parts(value) for value in table]


def changed(table: list[Any], before: list[Any]) -> Iterator[int]:
    """The numbers of the containers that hold other things than in the snapshot."""
    for number, (value, old) in enumerate(zip(table, before, strict=False)):
        new = _parts(value)
        if isinstance(new, bytes):
            if new != old:
                yield number
        elif len(new) != len(old) or not all(map(operator.is_, new, old)):
            yield number


def _parts(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return [part for item in dict.items(value) for part in item]
    return list(value)
