"""What a program may not do to the machine, each time for the reason that it should not work.

Each expression also runs in a plain process, where that does no harm: there it must succeed, or the
test would pass without a sandbox. Whatever is aimed at is the test's own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mars.evaluation.sandbox import launch, run_tests
from mars.evaluation.sandbox.inside import seccomp

from .sandboxes import only, unharmed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


@dataclass(frozen=True)
class Way:
    """An expression that must raise in a program, and how.

    `refused` holds names of errors, one of which it must be; `landlock` those in that mode, where
    they differ. `alone`: whether anybody may do it outside, without harm, and so it is tried.
    """

    expression: str
    refused: str
    landlock: str = ""
    alone: bool = True


HIDDEN, SHUT = "ENOENT", "EACCES"
F_SETSIG, F_SETOWN_EX, F_SETLEASE = 10, 15, 1024
FIOSETOWN, SIOCSPGRP, FS_IOC_GETFLAGS = 0x8901, 0x8902, 0x80086601
FILES = {
    "home": Way(
        "[n for n in os.listdir({home!r}) if n not in os.__file__][0]",
        f"{HIDDEN} IndexError",
        SHUT,
        False,
    ),
    "this file": Way("open({here!r}).read()", HIDDEN, SHUT),
    "passwd": Way("open('/etc/passwd').read()", HIDDEN, SHUT),
    "environment": Way("os.environ['PATH']", "KeyError"),
    "proc": Way("os.listdir('/proc')", HIDDEN, SHUT),
    "own proc": Way("open('/proc/self/environ').read()", HIDDEN, SHUT),
    "own memory": Way("open('/proc/self/mem', 'rb+')", HIDDEN, SHUT),
    "root of others": Way("os.listdir('/proc/1/root')", HIDDEN, SHUT, False),
    "own root": Way("os.listdir('/proc/self/root')", HIDDEN, SHUT),
    "sys": Way("os.listdir('/sys')", HIDDEN, SHUT),
    "devices": Way("open('/dev/zero', 'rb').read(1)", HIDDEN, SHUT),
    "writing outside": Way("open({outside!r}, 'w').write('x')", HIDDEN, SHUT),
    "writing to the library": Way("open(os.__file__ + 'x', 'w')", "EROFS EACCES", SHUT, False),
    "writing to the root": Way("open('/x', 'w')", "EROFS EACCES", SHUT, False),
    "writing over the library": Way("open(os.__file__, 'a')", "EROFS EACCES", SHUT, False),
    "removing a file": Way("os.unlink({victim!r})", HIDDEN, SHUT),
    "emptying a file": Way("open({victim!r}, 'w')", HIDDEN, SHUT),
    "its mode": Way("os.chmod({victim!r}, 0)", "EPERM"),
    "its times": Way("os.utime({victim!r})", "EPERM"),
    "its flags": Way(
        "fcntl.ioctl(os.open(os.__file__, 0), {getflags}, bytes(8))", "EPERM", "", False
    ),
    "a lease": Way(
        "fcntl.fcntl(os.open(os.__file__, 0), {setlease}, fcntl.F_RDLCK)", "EPERM", "", False
    ),
    "watching a folder": Way("c(libc.inotify_init())", "EPERM"),
    "a link out": Way("os.symlink({outside!r}, 'l') or open('l', 'w').write('x')", HIDDEN, SHUT),
    "a link to read": Way("os.symlink({here!r}, 'l') or open('l').read()", HIDDEN, SHUT),
    "a hard link": Way(
        "os.link(os.__file__, 'l') or open('l', 'a')", "EXDEV EPERM", "EXDEV EACCES EPERM", False
    ),
    "dots": Way("open('../' * 20 + {here!r})", HIDDEN, SHUT),
    "chroot": Way("os.chroot('.')", "EPERM", "", False),
    "a device": Way("os.mknod('n', 0o20666, os.makedev(1, 3))", "EPERM", SHUT, False),
    "mount": Way("c(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, b''))", "EPERM", "", False),
    "user namespace": Way("c(libc.unshare(0x10000000))", "EPERM", "", False),
    "becoming root": Way(
        "os.setuid(0) or open('/etc/shadow').read()", f"EPERM EINVAL {HIDDEN} {SHUT}", "", False
    ),
}
OTHERS = {
    "a signal": Way("os.kill({other}, 0)", "EPERM"),
    "a fatal signal": Way("os.kill({other}, 9)", "EPERM"),
    "a queued signal": Way("c(libc.sigqueue({other}, 0, None))", "EPERM"),
    "the parent": Way("os.kill(os.getppid(), 0)", "EPERM"),
    "the group": Way("os.killpg(0, 0)", "EPERM"),
    "everything": Way("os.kill(-1, 0)", "EPERM"),
    "a handle": Way("os.pidfd_open({other})", "EPERM"),
    "tracing": Way("c(libc.ptrace(0, 0, 0, 0))", "EPERM"),
    "memory of others": Way("c(libc.process_vm_readv({other}, None, 0, None, 0, 0))", "EPERM"),
    "limits of others": Way("resource.prlimit({other}, resource.RLIMIT_NOFILE, (9, 9))", "EPERM"),
    "processors of others": Way("os.sched_setaffinity({other}, [min({cpus})])", "EPERM"),
    "turns of others": Way(
        "os.sched_setscheduler({other}, os.SCHED_BATCH, os.sched_param(0))", "EPERM"
    ),
    "priority of others": Way("os.setpriority(os.PRIO_PROCESS, {other}, 19)", "EPERM"),
    "signals by a pipe": Way("fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {other})", "EPERM"),
    "signals by a pipe, extended": Way(
        "fcntl.fcntl(os.pipe()[0], {setown_ex}, struct.pack('ii', 1, {other}))", "EPERM"
    ),
    "another signal by a pipe": Way("fcntl.fcntl(os.pipe()[0], {setsig}, 10)", "EPERM"),
    "signals by a socket": Way(
        "fcntl.ioctl(socket.socketpair()[0], {fiosetown}, struct.pack('i', {other}))", "EPERM"
    ),
    "signals by a socket, otherwise": Way(
        "fcntl.ioctl(socket.socketpair()[0], {siocspgrp}, struct.pack('i', {other}))", "EPERM"
    ),
    "outliving the parent": Way("c(libc.prctl(1, 0, 0, 0, 0))", "EPERM"),
    "shared memory": Way("c(libc.shmctl(c(libc.shmget(0, 4096, 0o600)), 0, None))", "EPERM"),
    "shared memory of others": Way("c(libc.shmctl({segment}, 2, bytes(256)))", "EPERM"),
    "keys": Way("c(libc.syscall({keyctl}, 0, -3, 0))", "EPERM", "", False),
    "internet socket": Way("socket.socket()", "EPERM"),
    "unix socket": Way("socket.socket(socket.AF_UNIX)", "EPERM"),
    "netlink": Way("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "EPERM"),
    "this machine": Way("socket.create_connection(('127.0.0.1', {port}), 9)", "EPERM"),
    "a datagram": Way(
        "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', {address!r})", "EPERM"
    ),
}
LIMITS = {
    "higher limits": Way(
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "ValueError", "", False
    ),
    "a great file": Way(
        "[open('great', 'ab', 0).write(bytes(1 << 20)) for _ in range(2)]", "EFBIG", SHUT
    ),
    "filling the scratch folder": Way(
        "[open(f'f{{i}}', 'wb').write(bytes(1 << 20)) for i in range(20)]", "ENOSPC", SHUT
    ),
    "files without end": Way(
        "[open(f'f{{i}}', 'wb').close() for i in range(2100)]", "ENOSPC", SHUT
    ),
    "descriptors without end": Way("[open('/dev/null') for _ in range(99)]", "EMFILE"),
}
WAYS = FILES | OTHERS | LIMITS
PROGRAM = """
import ctypes, errno, fcntl, os, resource, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def c(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
def f():
    try:
        {expression}
    except OSError as error:
        return errno.errorcode[error.errno]
    except Exception as error:
        return type(error).__name__
    return "done"
"""


@dataclass
class Victim:
    """A process of the test's own, without rights, as a plain user's are."""

    process: subprocess.Popen[bytes]

    def state(self) -> tuple[object, ...]:
        """What a program may not change of it."""
        pid = self.process.pid
        return (
            self.process.poll(),
            resource.prlimit(pid, resource.RLIMIT_NOFILE),
            os.sched_getaffinity(pid),
            os.sched_getscheduler(pid),
            os.getpriority(os.PRIO_PROCESS, pid),
        )


@contextmanager
def victim() -> Iterator[Victim]:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from inside.isolation import "
        "_drop_capabilities; _drop_capabilities(); print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(launch.INSIDE.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Victim(process)
        process.kill()


class Machine:
    """Files, sockets, shared memory and a process to aim at; `told` names them in expressions."""

    def __init__(self, folder: Path, other: Victim, listening: socket.socket) -> None:
        self.folder, self.other = folder, other
        self.file = folder / "victim"
        self.file.write_text("kept")
        for path, mode in ((self.file, 0o666), (folder, 0o777)):
            path.chmod(mode)
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.setblocking(False)
        address = f"\0mars-test-{os.getpid()}"
        self.datagrams.bind(address)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.segment = self.libc.shmget(0, 4096, 0o600)
        column = seccomp.MACHINES.get(platform.machine(), (0, 0))[0]
        self.told = {
            "home": str(Path.home()),
            "here": __file__,
            "outside": str(folder / "outside"),
            "victim": str(self.file),
            "other": other.process.pid,
            "cpus": os.sched_getaffinity(0),
            "port": listening.getsockname()[1],
            "address": address,
            "segment": self.segment,
            "keyctl": seccomp.REFUSED["keyctl"][column],
            "setsig": F_SETSIG,
            "setown_ex": F_SETOWN_EX,
            "setlease": F_SETLEASE,
            "fiosetown": FIOSETOWN,
            "siocspgrp": SIOCSPGRP,
            "getflags": FS_IOC_GETFLAGS,
        }

    def program(self, way: Way) -> str:
        return PROGRAM.format(expression=way.expression.format(**self.told))

    def close(self) -> None:
        self.datagrams.close()
        self.libc.shmctl(self.segment, 0, None)

    def state(self) -> tuple[object, ...]:
        """What must be the same after an attack."""
        try:
            received = self.datagrams.recv(9)
        except BlockingIOError:
            received = b""
        files = sorted(path.name for path in self.folder.iterdir())
        details = self.file.stat()
        kept = (self.file.read_text(), details.st_mode, details.st_mtime_ns)
        return received, files, kept, self.other.state()


@pytest.fixture(scope="module", params=launch.modes())
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with only(request.param):
        yield request.param


@pytest.fixture(scope="module")
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, listening: socket.socket) -> Iterator[Machine]:
    folder = tmp_path / "aim"
    folder.mkdir()
    with victim() as other:
        here = Machine(folder, other, listening)
        yield here
        here.close()


@pytest.mark.parametrize("name", WAYS)
def test_ways_out_are_shut(name: str, mode: str, machine: Machine) -> None:
    way = WAYS[name]
    expected = (mode == "landlock" and way.landlock) or way.refused
    before = machine.state()
    with unharmed():
        verdict = run_tests(machine.program(way), "raise ValueError(f())", timeout_s=5.0)
    assert verdict.error.removeprefix("ValueError: ") in expected.split(), verdict
    assert machine.state() == before


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.alone])
def test_they_are_open_without_a_sandbox(name: str, machine: Machine, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = machine.program(WAYS[name]) + "\nprint(f())"
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(
        command, cwd=scratch, capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.stdout == "done\n", done


def test_what_programs_need_is_left(mode: str) -> None:
    """Calls of which some are refused work as libraries use them."""
    program = (
        "import asyncio, fcntl, os, resource, socket, tempfile\n"
        "def f():\n"
        "    asyncio.run(asyncio.sleep(0))\n"
        "    a, b = socket.socketpair()\n"
        "    a.setblocking(False), a.send(b'x')\n"
        "    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, soft // 2))\n"
        "    copy = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 5)\n"
        "    os.set_inheritable(copy, True), os.set_blocking(copy, False)\n"
        "    return b.recv(1), os.isatty(0), os.get_inheritable(copy)"
    )
    verdict = run_tests(program, "assert f() == (b'x', False, True)")
    assert verdict.passed, verdict
