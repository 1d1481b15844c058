"""What the kernel offers to keep a program from the rest of the machine.

`enter_root` leaves the network, the other processes and the file system behind, once; `own_spaces`
gives each program a scratch folder and process ids of its own; `restrict` takes the rights of the
process that runs next.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from typing import Any

from . import landlock, seccomp

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 0x400, 0x800, 0x1000, 0x4000
MS_PRIVATE, MS_RELATIME, MNT_DETACH = 0x40000, 0x200000, 0x2
STATVFS_TO_MOUNT = {
    0x1: MS_RDONLY,
    0x2: MS_NOSUID,
    0x4: MS_NODEV,
    0x8: MS_NOEXEC,
    0x400: MS_NOATIME,
    0x800: MS_NODIRATIME,
    0x1000: MS_RELATIME,
}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
FILE_BYTES = 1 << 20
SCRATCH = "size=16m,nr_inodes=2k,mode=1777"
DEVICES = ("/dev/null", "/dev/urandom")
LINUX = sys.platform.startswith("linux")
LIBC: Any = ctypes.CDLL(None, use_errno=True)


class IsolationError(Exception):
    """The kernel does not allow it; the text says what."""


def die_with_parent() -> None:
    """Be killed when the parent ends (Linux; elsewhere the closed pipe tells)."""
    if LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def keep_out() -> None:
    """Let no process of the same user trace this one or read its memory."""
    if LINUX:
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _unshare(flags: int) -> bool:
    return LINUX and LIBC.unshare(flags) == 0


def _own_user(flags: int, proc: int) -> bool:
    """Leave through a user namespace, where this user is root. `proc`: descriptor of /proc."""
    uid, gid = os.getuid(), os.getgid()
    if LINUX:
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # without it /proc/self/uid_map is root's
    if proc < 0 or not _unshare(NEWUSER | flags):
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
            os.write(file, text.encode())
            os.close(file)
    except OSError:
        return False
    return True


def _mount(source: str, target: str, kind: bytes | None, flags: int, options: str = "") -> None:
    done = LIBC.mount(os.fsencode(source), os.fsencode(target), kind, flags, options.encode())
    if done != 0:
        why = os.strerror(ctypes.get_errno())
        raise IsolationError(f"cannot mount {target}: {why}")


def _show(path: str, root: str) -> None:
    """Make a file or folder of the system readable at the same place under the new root."""
    seen = root + path
    os.makedirs(os.path.dirname(seen), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), seen)
        return
    if os.path.isdir(path):
        os.makedirs(seen, exist_ok=True)
    else:
        os.close(os.open(seen, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, seen, None, MS_BIND | MS_REC)
    set_already = os.statvfs(seen).f_flag
    kept = sum(flag for seen_as, flag in STATVFS_TO_MOUNT.items() if set_already & seen_as)
    device = path in DEVICES
    wanted = MS_NOSUID if device else MS_NOSUID | MS_NODEV
    _mount("none", seen, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept | wanted)


def enter_root(folder: str, shown: list[str], hidden: list[str], proc: int) -> bool:
    """Leave for namespaces of one's own and a root that holds only what is shown, read-only.

    Goes on in a child, the first process of its namespace, with which all others end.

    Args:
        folder: an empty folder to build the root on.
        shown: paths of the Python installation and the system's libraries.
        hidden: folders below them that are empty there.
        proc: descriptor of /proc.

    Returns:
        Whether this is the real root still, so that programs must change to another user.

    Raises:
        IsolationError: the kernel does not allow it.
    """
    spaces = NEWNS | NEWNET | NEWIPC | NEWUTS | NEWPID | NEWCGROUP
    privileged = os.getuid() == 0 and _unshare(spaces)
    if not privileged and not _own_user(spaces, proc):
        raise IsolationError("user namespaces are not to be had here")
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    die_with_parent()
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", folder, b"tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in [*shown, *DEVICES]:
        _show(path, folder)
    for path in hidden:
        _mount("tmpfs", folder + path, b"tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
    os.mkdir(folder + "/tmp")
    os.chdir(folder)
    if LIBC.pivot_root(b".", b".") != 0:
        raise IsolationError(f"cannot change the root: {os.strerror(ctypes.get_errno())}")
    LIBC.umount2(b".", MNT_DETACH)
    os.chdir("/")
    _mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    return privileged


def own_spaces(proc: int) -> bool:
    """Give the next child process ids of its own, and a new scratch folder at /tmp."""
    if not _unshare(NEWNS | NEWPID) and not _own_user(NEWNS | NEWPID, proc):
        return False
    try:
        _mount("tmpfs", "/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, SCRATCH)
    except IsolationError:
        return False
    return True


def _limit(kind: int, value: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # absent here: the wall clock still holds
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    LIBC.capset(header, (ctypes.c_uint32 * 6)())


def restrict(
    seconds: float, memory_mb: int, privileged: bool, readable: landlock.Parts | None
) -> bool:
    """Give up rights and set the limits of this process.

    Args:
        seconds: limit on CPU time; the next whole second above counts.
        memory_mb: limit on the address space.
        privileged: whether to change to a user without rights.
        readable: all that may be read from here on, by Landlock; None where the root is one's own.

    Returns:
        Whether system calls are filtered now, and files closed where `readable` asks for it.
    """
    if privileged:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if LINUX:
        _unshare(NEWUSER)  # processes are counted, and so limited, for each such namespace
        _drop_capabilities()
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()
    _limit(resource.RLIMIT_CPU, int(seconds) + 1)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 32)
    _limit(resource.RLIMIT_NPROC, 1)
    _limit(resource.RLIMIT_AS, memory_mb << 20)
    closed = readable is None or landlock.allow_only(LIBC, readable, DEVICES)
    keep_out()  # a change of user undoes it, and from here on no program can
    return seccomp.install(LIBC) and closed
