"""The sandbox in one way only, and what the tests that attack it have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import host, run_tests

from .processes import descendants

REQUIRED = "MARS_REQUIRE_SANDBOX"
"""Set where the tests must find a sandbox, as in CI; elsewhere, without one, they are skipped."""
RIGHT = "def f(x):\n    return x + 1"
TESTS = "assert f(1) == 2 and f(40) == 41"


def need_sandbox() -> None:
    """Skip the test, or let it fail if REQUIRED is set, where no sandbox can be had."""
    try:
        sandbox.layers()
    except sandbox.SandboxError as error:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and {error}")
        pytest.skip(str(error))


@contextmanager
def only(mode: str) -> Iterator[None]:
    """The sandbox in this mode and no other, never unprotected; skips where it does not start."""
    host.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "modes", lambda: (mode,))
        patch.setattr(host, "_unprotected", False)
        patch.setattr(host, "_verdicts", {})
        try:
            sandbox.layers()
        except sandbox.SandboxError as error:
            pytest.skip(str(error))
        yield
    host.close()


@contextmanager
def unharmed() -> Iterator[None]:
    """The server that ran before an attack runs after it, with no process more."""
    assert run_tests(RIGHT, f"{TESTS}\n# {time.monotonic()}").passed
    server = host._server
    assert server is not None
    before = descendants(server.process.pid)
    yield
    assert run_tests(RIGHT, f"{TESTS}\n# {time.monotonic()}").passed
    assert host._server is server
    assert left_alone(server.process.pid, before)


def left_alone(pid: int, before: set[int], within_s: float = 10.0) -> bool:
    """Whether soon nothing else runs below a process than before: supervisors end after answers."""
    deadline = time.monotonic() + within_s
    while not descendants(pid) <= before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
