"""Each way to start the sandbox that this machine has, and what happens where it has none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import host, launch, run_tests
from mars.evaluation.sandbox.inside import seccomp

PROGRAM = """
import os, socket, sys, decimal
def right(x): return decimal.Decimal(x) * 2 == 4
def everything(x): return type("Any", (), {"__eq__": lambda *_: True})()
def listen(): socket.socket()
def read(path): return open(path).read()[:1]
def write(path): open(path, "w").close()
def fork(): return os.fork()
def kill(): os.kill(-1, 9)
"""
RAISES = "try:\n    {call}\nexcept OSError:\n    pass\nelse:\n    raise RuntimeError('done')"


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The sandbox, started in one way only."""
    host.close()
    monkeypatch.setattr(host, "_verdicts", {})
    monkeypatch.setattr(
        host, "modes", lambda: () if request.param == "limits" else (request.param,)
    )
    monkeypatch.setattr(host, "_unprotected", request.param == "limits")
    if request.param not in ("limits", *launch.modes()):
        pytest.skip(f"there is no {request.param} here")
    try:
        sandbox.layers()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
    yield request.param
    host.close()


@pytest.mark.parametrize("way", ["bubblewrap", "namespaces", "limits"], indirect=True)
def test_every_way_judges_and_protects(way: str) -> None:
    layers = sandbox.layers()
    assert sandbox.in_use() == layers
    assert "resource limits" in layers
    assert run_tests(PROGRAM, "assert right(2)") == sandbox.Verdict(True, "")
    assert not run_tests(PROGRAM, "assert right(3)").passed
    assert not run_tests(PROGRAM, "assert everything(3) == 3").passed
    if "system call filter" in layers:
        for call in ("listen()", "fork()", "kill()"):
            assert run_tests(PROGRAM, RAISES.format(call=call)).passed, call
    if way != "limits":
        assert {way, "no network", "minimal read-only root"} <= set(layers)
        for call in (f"read({__file__!r})", f"write({os.__file__!r})", "write('/usr/lib/x')"):
            assert run_tests(PROGRAM, RAISES.format(call=call)).passed, call
    assert run_tests("def f(): open('/tmp/mine', 'w').close()", "f()\n# scratch").passed or (
        way == "limits"
    )


def test_nothing_is_run_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    host.close()
    monkeypatch.setattr(host, "modes", lambda: ())
    with pytest.raises(sandbox.SandboxError, match="model_written_code: unprotected"):
        run_tests(PROGRAM, "assert right(2)  # alone")
    assert sandbox.in_use() is None
    monkeypatch.setattr(host, "_unprotected", False)
    sandbox.allow_unprotected()
    assert run_tests(PROGRAM, "assert right(2)  # alone").passed
    host.close()


def test_the_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    host.close()
    monkeypatch.setattr(host, "modes", lambda: ("bubblewrap", "namespaces"))
    monkeypatch.setattr(host, "command", lambda *_: ["/bin/false"])
    with pytest.raises(sandbox.SandboxError) as caught:
        sandbox.layers()
    told = str(caught.value)
    assert "bubblewrap: it ended; namespaces: it ended" in told
    assert "\n" not in told


def test_the_filter_is_known_for_two_machines() -> None:
    assert seccomp.program("riscv64") is None
    for machine in ("x86_64", "aarch64"):
        code = seccomp.program(machine)
        assert code is not None
        assert len(code) % 8 == 0
        assert len(code) // 8 < 4096
