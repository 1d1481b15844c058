"""The sandbox as the rest of the program sees it: one server, asked for verdicts."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

from mars.evaluation.sandbox.inside.clock import PATIENCE
from mars.evaluation.sandbox.inside.messages import receive, send, send_all
from mars.evaluation.sandbox.launch import ENVIRONMENT, REMEDY, command, modes

START_S = 60.0
GRACE_S = 10.0
"""Beyond its limit, how long a program's verdict is waited for before the server is replaced."""
REPLY_BYTES = 1 << 16


class SandboxError(RuntimeError):
    """The sandbox itself does not work here; the message is one line for the user."""


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed its tests, and if not, why."""

    passed: bool
    error: str


class _Server:
    """The server process and its pipes. Raises SandboxError where it does not start so."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.owner = os.getpid()
        self.folder = tempfile.mkdtemp(prefix="mars-sandbox-")
        os.chmod(self.folder, 0o755)
        proc = os.open("/proc", os.O_RDONLY) if os.path.isdir("/proc/self") else -1
        try:
            self.process = subprocess.Popen(
                command(mode, self.folder, proc),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                pass_fds=(proc,) if proc >= 0 else (),
                start_new_session=True,
                bufsize=0,
            )
            started = self._receive(START_S)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise SandboxError(f"{mode}: {str(error) or 'it ended'}") from None
        except BaseException:
            self.close()
            raise
        finally:
            if proc >= 0:
                os.close(proc)
        if "failed" in started:
            self.close()
            raise SandboxError(f"{mode}: {started['failed']}")
        if mode != "limits":  # whose programs write there; nothing is left where this is killed
            shutil.rmtree(self.folder, ignore_errors=True)
        self.layers: tuple[str, ...] = tuple(started["layers"])

    def ask(self, program: str, tests: str, timeout_s: float, memory_mb: int) -> Verdict:
        """One program's verdict. Raises EOFError or OSError when the server is gone."""
        bodies = [text.encode("utf-8", "surrogatepass") for text in (program, tests)]
        header: dict[str, Any] = {"program": len(bodies[0]), "tests": len(bodies[1])}
        header |= {"timeout_s": timeout_s, "memory_mb": memory_mb}
        pipe = self.process.stdin
        assert pipe is not None
        send(pipe.fileno(), json.dumps(header).encode())
        for body in bodies:
            send_all(pipe.fileno(), body)
        reply = self._receive(PATIENCE * timeout_s + GRACE_S)
        return Verdict(bool(reply["passed"]), str(reply["error"]))

    def _receive(self, seconds: float) -> dict[str, Any]:
        pipe = self.process.stdout
        assert pipe is not None
        deadline = time.monotonic() + seconds
        waiting = select.poll()  # select counts to 1023 only, and a study has many files open
        waiting.register(pipe, select.POLLIN)
        if not waiting.poll(1000 * max(deadline - time.monotonic(), 0)):
            raise EOFError("no answer")
        answer: dict[str, Any] = json.loads(receive(pipe.fileno(), REPLY_BYTES))
        return answer

    def close(self) -> None:
        """End the server and remove its folder."""
        if self.owner != os.getpid():
            return
        process = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_server: _Server | None = None
_unprotected = False
_verdicts: dict[tuple[str, str, float, int], Verdict] = {}


def allow_unprotected(allowed: bool = True) -> None:
    """Whether programs are run where nothing but limits can be had; at first they are not."""
    global _unprotected
    with _lock:
        _unprotected = allowed
        if not allowed and _server is not None and _server.mode == "limits":
            close()


def _current() -> _Server:
    """The server of this process, started if need be. Raises SandboxError."""
    global _server
    if _server is None or _server.owner != os.getpid() or _server.process.poll() is not None:
        if _server is not None:
            _server.close()
        _server = _start()
    return _server


def _start() -> _Server:
    """The strongest server that starts."""
    reasons = []
    for mode in modes():
        try:
            return _Server(mode)
        except SandboxError as error:
            reasons.append(str(error))
    if _unprotected:
        return _Server("limits")
    why = "; ".join(reasons) or "this system has no namespaces"
    raise SandboxError(f"no sandbox for model-written code can be had here ({why}): {REMEDY}")


@atexit.register
def close() -> None:
    """End the server, if there is one; the next program starts another."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def layers() -> tuple[str, ...]:
    """What stands between a program and the machine here, for the run's records.

    Raises:
        SandboxError: nothing does, and that was not allowed.
    """
    with _lock:
        return _current().layers


def in_use() -> tuple[str, ...] | None:
    """The layers of the server, or None where no program has been run yet."""
    with _lock:
        return _server.layers if _server is not None else None


def run_tests(program: str, tests: str, *, timeout_s: float = 3.0, memory_mb: int = 512) -> Verdict:
    """Judge a program: it passes where its tests reach their end without an error.

    Args:
        program: Python source that defines what is tested; not trusted.
        tests: Python source that uses those names; trusted, and run where the program is not.
        timeout_s: limit on the CPU time of both together; time in which they compute
            nothing: twice that; wall-clock time: thirty times.
        memory_mb: limit on the program's address space.

    Raises:
        SandboxError: no sandbox can be had here; the message names the remedy.
    """
    key = (program, tests, timeout_s, memory_mb)
    with _lock:
        if key not in _verdicts:
            _verdicts[key] = _judge(*key)
        return _verdicts[key]


def _judge(program: str, tests: str, timeout_s: float, memory_mb: int) -> Verdict:
    for _ in range(2):  # a server may have been ended by others; by a program it cannot be twice
        try:
            return _current().ask(program, tests, timeout_s, memory_mb)
        except (EOFError, OSError, ValueError):
            close()
        except BaseException:  # an interrupt: its verdict must not become the next program's
            close()
            raise
    return Verdict(False, "ends or stalls the process that runs it")
