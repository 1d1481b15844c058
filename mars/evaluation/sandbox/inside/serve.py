"""The sandbox's server: it isolates itself, then forks the processes of each program.

It is started with its settings as JSON in its first argument. A request is a header (the limits,
and the lengths of what follows), the program, and the tests; the server reads the header alone,
and the process that becomes the candidate is forked before the tests are read, so that they are
nowhere in its memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from . import candidate, isolation, judge, landlock
from .clock import read_report
from .messages import read_exactly, receive, send

REQUESTS, REPLIES = 0, 1
QUESTIONS, ANSWERS = 3, 4
HEADER_BYTES = 4096
REPORT_BYTES = 8192
JUDGE_MB = 1024
HIGHEST = 4096
"""No descriptor here has a higher number."""
COMMON_MODULES = (
    "bisect",
    "collections",
    "copy",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
)
"""Imported once, before the forks, as most programs need some of them."""


class Server:
    """One server; its mode ("bubblewrap", "namespaces", "landlock", "limits") is as asked for."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.mode: str = settings["mode"]
        self.folder: str = settings["folder"]
        self.proc = _low(settings["proc"])
        self.own_root = self.mode in ("bubblewrap", "namespaces")
        self.readable: landlock.Parts | None = None
        if self.mode == "landlock":
            self.readable = landlock.parts(settings["shown"], settings["hidden"])
        self.privileged = not self.own_root and os.getuid() == 0 and _for_everyone(os.__file__)
        if self.mode == "namespaces":
            places = settings["shown"], settings["hidden"]
            self.privileged = isolation.enter_root(self.folder, *places, self.proc)
        os.environ.clear()
        isolation.keep_out()
        for name in COMMON_MODULES:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # what is not touched is not copied after a fork
        self.null = os.open(os.devnull, os.O_RDWR)

    def layers(self) -> list[str]:
        """What will stand between a program and the machine, tried out in a process of its own."""
        reader, writer = os.pipe()
        if (trial := os.fork()) == 0:
            spaces = self.own_root and isolation.own_spaces(self.proc)
            filtered = isolation.restrict(1, 256, self.privileged, self.readable)
            os.write(writer, json.dumps([spaces, filtered]).encode())
            os._exit(0)
        os.close(writer)
        answer = os.read(reader, 100)
        os.close(reader)
        os.waitpid(trial, 0)
        spaces, filtered = json.loads(answer)
        if self.mode == "landlock" and not filtered:
            raise isolation.IsolationError("the kernel has no Landlock, or no filter for this CPU")
        named = {
            self.mode: self.mode != "limits",
            "no network": self.mode != "limits",
            "minimal read-only root": self.own_root,
            "reads Python and libraries only, writes nothing": self.mode == "landlock",
            "own process ids": spaces,
            "own scratch in memory": spaces,
            "system call filter": filtered,
            "unprivileged user": self.privileged,
            "resource limits": True,
        }
        return [name for name, there in named.items() if there]

    def answer(self) -> None:
        """Take one request, in a process of its own. Raises EOFError after the last."""
        header = json.loads(receive(REQUESTS, HEADER_BYTES))
        supervisor = os.fork()
        if supervisor == 0:
            try:
                send(REPLIES, json.dumps(self.supervise(header)).encode())
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(supervisor, 0)[1] != 0:
            os._exit(1)  # how much of the request was read is unknown; another server starts
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def supervise(self, header: dict[str, Any]) -> dict[str, Any]:
        """Fork judge and candidate, hold the clock, kill what is left; the judge's verdict."""
        os.setsid()
        isolation.die_with_parent()
        source = read_exactly(REQUESTS, header["program"]).decode("utf-8", "surrogatepass")
        questions, answers, report = os.pipe(), os.pipe(), os.pipe()
        seconds: float = header["timeout_s"]
        if (judging := os.fork()) == 0:
            self._judge(header, questions[1], answers[0], report[1])
        for descriptor in (questions[1], answers[0], report[1]):
            os.close(descriptor)
        if os.read(report[0], 1) != judge.READY:
            os._exit(1)
        own = self.own_root and isolation.own_spaces(self.proc)
        isolation.keep_out()
        folder = self._scratch()
        if (running := os.fork()) == 0:
            self._candidate(source, header, questions[0], answers[1], folder)
        for descriptor in (questions[0], answers[1]):
            os.close(descriptor)
        said = read_report(report[0], (running, judging), seconds, REPORT_BYTES)
        for child in (running, judging):
            _end(child)
        if folder is not None and not own:
            _empty(folder)
            if not self.own_root:
                os.rmdir(folder)
        try:
            verdict: dict[str, Any] = json.loads(said or "")
        except ValueError:
            late = f"still running after {seconds:g} s"
            lost = "the process of the tests ends before they do"
            return {"passed": False, "error": late if said is None else lost}
        return verdict

    def _scratch(self) -> str | None:
        """Where the next program may write; None: nowhere, as Landlock has it."""
        if self.mode == "landlock":
            return None
        folder = "/tmp" if self.own_root else tempfile.mkdtemp(dir=self.folder)
        os.chmod(folder, 0o1777)
        return folder

    def _judge(self, header: dict[str, Any], questions: int, answers: int, report: int) -> NoReturn:
        try:
            tests = read_exactly(REQUESTS, header["tests"]).decode("utf-8", "surrogatepass")
            self._keep_only(questions, answers, report)
            isolation.restrict(header["timeout_s"], JUDGE_MB, self.privileged, self.readable)
            judge.run(tests, QUESTIONS, ANSWERS, ANSWERS + 1)
        finally:
            os._exit(0)

    def _candidate(
        self, source: str, header: dict[str, Any], questions: int, answers: int, folder: str | None
    ) -> NoReturn:
        try:
            os.setsid()
            os.chdir(folder or "/")
            self._keep_only(questions, answers)
            isolation.restrict(
                header["timeout_s"], header["memory_mb"], self.privileged, self.readable
            )
            candidate.run(source, QUESTIONS, ANSWERS)
        finally:
            os._exit(0)

    def _keep_only(self, *descriptors: int) -> None:
        """Close every file but these, which become 3, 4, …; no input, no output."""
        wanted = (self.null, self.null, self.null, *descriptors)
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in wanted]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, number)
        os.closerange(len(high), os.sysconf("SC_OPEN_MAX") if not isolation.LINUX else HIGHEST)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode)  # noqa: SIM115
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )


def _low(descriptor: int) -> int:
    """The same file under a low number: all that a program must not have is below HIGHEST."""
    if descriptor < 0:
        return descriptor
    low = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)
    os.close(descriptor)
    return low


def _for_everyone(path: str) -> bool:
    """Whether another user may read a file, such as one of the standard library."""
    above = list(Path(path).resolve().parents)
    return all(folder.stat().st_mode & 0o1 for folder in above)


def _end(child: int) -> None:
    """Kill a process and its group; in process ids of its own, all that it started end too."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _empty(folder: str) -> None:
    """Remove what a program left behind. Ends the process, and so the server, where it cannot."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def main() -> None:
    """Start, say what is in force or why nothing is, and answer until the pipe closes."""
    settings = json.loads(sys.argv[1])
    isolation.die_with_parent()
    if settings["mode"] != "bubblewrap" and os.getppid() != settings["parent"]:
        sys.exit("the parent is gone")
    try:
        server = Server(settings)
        send(REPLIES, json.dumps({"layers": server.layers()}).encode())
    except (isolation.IsolationError, OSError) as error:
        send(REPLIES, json.dumps({"failed": str(error)}).encode())
        return
    with contextlib.suppress(EOFError):
        while True:
            server.answer()
