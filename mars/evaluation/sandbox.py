"""Run model-written Python away from the rest of the machine.

One runner process (``python -I -S``, empty environment, see ``_sandbox_runner.py``) is started
when first needed and forks a child for each program: a few milliseconds a program. On Linux it
leaves the network, sees the file system read-only but for a small scratch folder of its own, and
each program is alone in a process-id namespace, as far as the kernel lets this user do so;
``layers()`` names what was in force. CPU, memory, processes, files and wall time are limited
everywhere, output is dropped, and a program passes only by reaching its last line: a secret token
is reported after it, so that leaving early is not passing.

What it does *not* cover: a program may read what the user may read; it may read the clock and
burn the CPU time it is given; one written to hunt for the token through the interpreter's own
frames can forge its own pass. Where namespaces are not to be had (macOS, most containers) the
network is open, files that the user may write can be written, and a program may signal the user's
other processes. It is meant for code of small models on known tests, not for hostile code.
"""

from __future__ import annotations

import atexit
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mars.evaluation._sandbox_runner import receive, send

GRACE_S = 10.0
"""Beyond its limit, how long a program's verdict is waited for before the runner is replaced."""


class SandboxError(RuntimeError):
    """The sandbox itself does not work here; the message is one line for the user."""


@dataclass(frozen=True)
class Verdict:
    """Whether a program ran to its end, and if not, why."""

    passed: bool
    error: str


class _Runner:
    """The runner process and its pipes."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.scratch = tempfile.mkdtemp(prefix="mars-sandbox-")
        os.chmod(self.scratch, 0o755)
        script = str(Path(__file__).with_name("_sandbox_runner.py"))
        command = [sys.executable, "-I", "-S", script, self.scratch, str(self.owner)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self.scratch,
                env={},
                start_new_session=True,
            )
            self.layers = tuple(self._receive(60.0)["layers"])
        except (OSError, EOFError) as error:
            self.close()
            raise SandboxError(
                f"the sandbox for model-written code did not start: {error}"
            ) from None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One program's verdict. Raises EOFError or OSError when the runner is gone."""
        assert self.process.stdin is not None
        send(self.process.stdin, request)  # type: ignore[arg-type]
        return self._receive(request["timeout_s"] + GRACE_S)

    def _receive(self, seconds: float) -> dict[str, Any]:
        pipe = self.process.stdout
        assert pipe is not None
        deadline = time.monotonic() + seconds
        if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise EOFError("no answer")
        stream: BinaryIO = pipe  # type: ignore[assignment]
        reply = receive(stream)
        if reply is None:
            raise EOFError("it ended")
        return reply

    def close(self) -> None:
        """End the runner and remove its folder."""
        if self.owner != os.getpid():
            return
        process = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                try:
                    pipe.close()
                except OSError:
                    continue
        shutil.rmtree(self.scratch, ignore_errors=True)


_lock = threading.Lock()
_runner: _Runner | None = None
_verdicts: dict[tuple[str, float, int], Verdict] = {}


def _current() -> _Runner:
    """The runner of this process, started if need be."""
    global _runner
    if _runner is None or _runner.owner != os.getpid() or _runner.process.poll() is not None:
        if _runner is not None:
            _runner.close()
        _runner = _Runner()
    return _runner


@atexit.register
def close() -> None:
    """End the runner, if there is one; the next program starts another."""
    global _runner
    if _runner is not None:
        _runner.close()
        _runner = None


def layers() -> tuple[str, ...]:
    """What stands between a program and the machine here, for the run's records."""
    with _lock:
        return _current().layers


def in_use() -> tuple[str, ...] | None:
    """The layers of the runner, or None where no program has been run yet."""
    with _lock:
        return _runner.layers if _runner is not None else None


def run_program(source: str, timeout_s: float = 2.0, memory_mb: int = 256) -> Verdict:
    """Run a Python program in the sandbox; it passes by reaching its end without an error.

    Args:
        source: the whole program, tests included.
        timeout_s: wall-clock limit (CPU time is limited to the next whole second above).
        memory_mb: limit on the address space.
    """
    key = (source, timeout_s, memory_mb)
    with _lock:
        if key not in _verdicts:
            _verdicts[key] = _run(source, timeout_s, memory_mb)
        return _verdicts[key]


def _run(source: str, timeout_s: float, memory_mb: int) -> Verdict:
    request = {
        "source": source,
        "timeout_s": timeout_s,
        "memory_mb": memory_mb,
        "token": secrets.token_hex(16),
    }
    runner = _current()
    try:
        reply = runner.ask(request)
    except (EOFError, OSError, ValueError):
        close()
        return Verdict(False, "kills or stalls the process that runs it")
    return Verdict(bool(reply["passed"]), str(reply["error"]))
