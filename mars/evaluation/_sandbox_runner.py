"""The process that runs model-written programs for ``sandbox.py``; standard library only.

Started as ``python -I -S``. It isolates itself as far as the system lets it, once, and then forks
two processes for each program it is sent: a supervisor, which holds the clock, and the program,
which gives up what rights are left and runs. Requests and replies are length-prefixed JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from typing import Any, BinaryIO

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOBODY = 65534
REPORT_BYTES = 4096
FILE_BYTES = 1 << 20
COMMON_MODULES = (
    "collections",
    "functools",
    "heapq",
    "itertools",
    "math",
    "random",
    "re",
    "string",
    "typing",
)
"""Imported once, before the forks, as most programs need some of them."""
LINUX = sys.platform.startswith("linux")
LIBC: Any = ctypes.CDLL(None, use_errno=True)


def receive(stream: BinaryIO) -> Any:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack("!I", head)[0])
    return json.loads(body)


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    body = json.dumps(message).encode()
    stream.write(struct.pack("!I", len(body)) + body)
    stream.flush()


def die_with_parent() -> None:
    """Be killed when the parent ends (Linux; elsewhere the closed pipe tells)."""
    if LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _unshare(flags: int) -> bool:
    return LINUX and LIBC.unshare(flags) == 0


def _become_root_of_namespace(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source: str, target: str, kind: bytes | None, flags: int, options: bytes) -> bool:
    return LIBC.mount(os.fsencode(source), os.fsencode(target), kind, flags, options) == 0


def _read_only(scratch: str) -> bool:
    """Make every mount read-only but a small private memory file system at ``scratch``.

    The standard library is mounted there too: an unprivileged user may not be able to reach it.
    """
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    frozen = _mount("none", "/", None, MS_REC | MS_PRIVATE, b"") and not LIBC.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, size
    )
    if not frozen or not _mount(
        "tmpfs", scratch, b"tmpfs", MS_NOSUID | MS_NODEV, b"size=16m,mode=755"
    ):
        return False
    library, seen = os.path.dirname(os.__file__), os.path.join(scratch, "library")
    os.mkdir(seen)
    if _mount(library, seen, None, MS_BIND | MS_REC, b""):
        sys.path = [path.replace(library, seen) for path in sys.path]
        for module in list(sys.modules.values()):
            if paths := getattr(module, "__path__", None):
                module.__path__ = [path.replace(library, seen) for path in paths]
    return True


def isolate(scratch: str) -> tuple[list[str], bool]:
    """Leave the network and the writable file system behind.

    Returns the names of what worked, and whether programs must change to an unprivileged user.
    """
    layers = []
    uid, gid = os.getuid(), os.getgid()
    spaces = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC
    privileged = uid == 0
    alone = privileged and _unshare(spaces)
    if not alone and _unshare(CLONE_NEWUSER | spaces):
        _become_root_of_namespace(uid, gid)
        alone, privileged = True, False
    if alone:
        layers.append("no network")
        if _read_only(scratch):
            layers.append("read-only file system")
    if privileged:
        layers.append("unprivileged user")
    return [*layers, "resource limits"], privileged


def _limit(kind: int, value: int) -> None:
    try:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        pass  # absent here: `isolate` and the wall clock still hold


def restrict(seconds: float, memory_mb: int, privileged: bool) -> None:
    """Give up rights and set the limits of the program that runs next in this process."""
    if privileged:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _unshare(CLONE_NEWUSER)
    if LINUX:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _limit(resource.RLIMIT_CPU, int(seconds) + 1)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 32)
    _limit(resource.RLIMIT_NPROC, 1)
    _limit(resource.RLIMIT_AS, memory_mb << 20)


def _only_report(report: int) -> int:
    """Close every file but the report, which becomes descriptor 3; no input, no output."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(report, 3 if report != 3 else report)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(4, 1024)
    return 3


def program(request: dict[str, Any], report: int, folder: str) -> None:
    """Run the program in this process; the token is reported only after its last line."""
    write, leave = os.write, os._exit
    token: bytes = request["token"].encode()
    source, seconds, memory = request["source"], request["timeout_s"], request["memory_mb"]
    os.setsid()
    os.chdir(folder)
    report = _only_report(report)
    sys.stdin, sys.stdout, sys.stderr = (open(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    restrict(seconds, memory, request["privileged"])
    die_with_parent()
    del request
    text = ""
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
        write(report, token)
        leave(0)
    except SystemExit:
        text = "exits before its end"
    except BaseException as error:
        try:
            text = f"{type(error).__name__}: {error}"[:300]
        except BaseException:
            text = "raises an error that cannot be shown"
    write(report, b"!" + text.encode("utf-8", "replace"))
    leave(1)


def supervise(request: dict[str, Any], scratch: str) -> dict[str, Any]:
    """Fork the program, hold the clock, kill what is left, and return what was reported."""
    os.setsid()
    die_with_parent()
    _unshare(CLONE_NEWPID)
    folder = tempfile.mkdtemp(dir=scratch)
    os.chmod(folder, 0o777)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            program(request, writer, folder)
        finally:
            os._exit(1)
    os.close(writer)
    said, timed_out = b"", False
    deadline = time.monotonic() + request["timeout_s"]
    while len(said) < REPORT_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            timed_out = True
            break
        piece = os.read(reader, REPORT_BYTES)
        if not piece:
            break
        said += piece
    _end(child)
    shutil.rmtree(folder, ignore_errors=True)
    if said == request["token"].encode():
        return {"passed": True, "error": ""}
    if timed_out:
        error = f"still running after {request['timeout_s']:g} s"
    elif said.startswith(b"!"):
        error = said[1:].decode("utf-8", "replace")
    else:
        error = "ends before its last line"
    return {"passed": False, "error": error}


def _end(child: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(child, 0)


def serve(scratch: str, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the pipe closes."""
    layers, privileged = isolate(scratch)
    for name in COMMON_MODULES:
        importlib.import_module(name)
    send(replies, {"layers": layers})
    while (request := receive(requests)) is not None:
        _answer(request | {"privileged": privileged}, scratch, replies)


def _answer(request: dict[str, Any], scratch: str, replies: BinaryIO) -> None:
    """Supervise in a process of its own, and answer for it if it is killed."""
    supervisor = os.fork()
    if supervisor == 0:
        try:
            send(replies, supervise(request, scratch))
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(supervisor, 0)[1] != 0:
        send(replies, {"passed": False, "error": "kills the process that watches it"})


if __name__ == "__main__":
    die_with_parent()
    if os.getppid() != int(sys.argv[2]):
        sys.exit("the parent is gone")
    serve(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
