"""Messages over pipes: a length of four bytes, then the body."""

from __future__ import annotations

import os
import struct

HEAD = struct.Struct("!I")


def read_exactly(descriptor: int, count: int) -> bytes:
    """That many bytes and no more. Raises EOFError where the stream ends before."""
    pieces = []
    while count:
        piece = os.read(descriptor, min(count, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def receive(descriptor: int, limit: int) -> bytes:
    """The next body. Raises EOFError at the end, ValueError where it is longer than `limit`."""
    (count,) = HEAD.unpack(read_exactly(descriptor, HEAD.size))
    if count > limit:
        raise ValueError(f"a message of {count} bytes")
    return read_exactly(descriptor, count)


def send(descriptor: int, body: bytes) -> None:
    """Write one body. Raises OSError where nobody reads."""
    send_all(descriptor, HEAD.pack(len(body)) + body)


def send_all(descriptor: int, data: bytes) -> None:
    """Write bytes as they are, all of them. Raises OSError where nobody reads."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
