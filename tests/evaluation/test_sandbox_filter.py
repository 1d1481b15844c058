"""What the filter of system calls decides on each machine that it knows, and Landlock's rules."""

from __future__ import annotations

import errno
import struct

import pytest

from mars.evaluation.sandbox.inside import landlock, seccomp

REFUSED = seccomp.ERRNO | errno.EPERM
UNKNOWN = seccomp.ERRNO | errno.ENOSYS
MACHINES = sorted(seccomp.MACHINES)
OTHER = 4321
"""A process id that is not one's own."""


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter returns for a call, by running its program as the kernel would."""
    code = seccomp.program(machine)
    assert code is not None
    wanted = seccomp.MACHINES[machine][1] if architecture is None else architecture
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, wanted, 0, *(value & (1 << 64) - 1 for value in values))
    loaded, at = 0, 0
    while True:
        kind, hit, miss, value = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if kind == seccomp.LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif kind == seccomp.JUMP_EQUAL:
            at += hit if loaded == value else miss
        elif kind == seccomp.JUMP_AT_LEAST:
            at += hit if loaded >= value else miss
        else:
            assert kind == seccomp.RETURN
            return int(value)


def number_of(name: str, machine: str) -> int:
    numbers = {call: pair for (call, _), (pair, _) in seccomp.ONLY.items()}
    found = (seccomp.REFUSED | numbers)[name][seccomp.MACHINES[machine][0]]
    assert found is not None
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name",
    [
        "kill",
        "tkill",
        "tgkill",
        "rt_sigqueueinfo",
        "rt_tgsigqueueinfo",
        "pidfd_open",
        "pidfd_getfd",
        "pidfd_send_signal",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "kcmp",
        "sched_setaffinity",
        "sched_setscheduler",
        "sched_setparam",
        "sched_setattr",
        "setpriority",
        "ioprio_set",
        "move_pages",
        "migrate_pages",
        "shmctl",
        "semctl",
        "msgctl",
        "mq_open",
        "mq_unlink",
        "connect",
        "bind",
        "perf_event_open",
        "bpf",
        "keyctl",
        "userfaultfd",
        "io_uring_setup",
        "io_setup",
    ],
)
def test_calls_that_reach_others_are_refused(name: str, machine: str) -> None:
    assert decide(machine, number_of(name, machine), OTHER) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("prlimit64", (0,), seccomp.ALLOW),
        ("prlimit64", (OTHER,), REFUSED),
        ("prlimit64", (1 << 32 | OTHER,), REFUSED),
        ("fcntl", (3, 0), seccomp.ALLOW),  # F_DUPFD
        ("fcntl", (3, 6), seccomp.ALLOW),  # F_SETLK
        ("fcntl", (3, 1030), seccomp.ALLOW),  # F_DUPFD_CLOEXEC
        ("fcntl", (3, 8, OTHER), REFUSED),  # F_SETOWN
        ("fcntl", (3, 1 << 32 | 8, OTHER), REFUSED),  # the kernel reads the low half
        ("fcntl", (3, 10), REFUSED),  # F_SETSIG
        ("fcntl", (3, 15), REFUSED),  # F_SETOWN_EX
        ("fcntl", (3, 1024), REFUSED),  # F_SETLEASE
        ("ioctl", (3, 0x5401), seccomp.ALLOW),  # TCGETS
        ("ioctl", (3, 0x8901), REFUSED),  # FIOSETOWN
        ("ioctl", (3, 0x8902), REFUSED),  # SIOCSPGRP
        ("ioctl", (3, 0x5412), REFUSED),  # TIOCSTI
        ("ioctl", (3, 0x40086602), REFUSED),  # FS_IOC_SETFLAGS
        ("prctl", (15,), seccomp.ALLOW),  # PR_SET_NAME
        ("prctl", (1,), REFUSED),  # PR_SET_PDEATHSIG
        ("prctl", (4, 1), REFUSED),  # PR_SET_DUMPABLE
        ("prctl", (62, 2, OTHER), REFUSED),  # PR_SCHED_CORE
        ("socketpair", (1, 0x80001), seccomp.ALLOW),  # AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC
        ("socketpair", (1, 2), REFUSED),  # SOCK_DGRAM
        ("socketpair", (30, 1), REFUSED),  # AF_TIPC
    ],
)
def test_some_calls_depend_on_an_argument(
    name: str, arguments: tuple[int, ...], answer: int, machine: str
) -> None:
    assert decide(machine, number_of(name, machine), *arguments) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_usual_calls_are_allowed_and_unknown_ones_are_not_there(machine: str) -> None:
    read, write = {"x86_64": (0, 1), "aarch64": (63, 64)}[machine]
    assert {decide(machine, read), decide(machine, write)} == {seccomp.ALLOW}
    assert decide(machine, 463) == UNKNOWN  # setxattrat
    assert decide(machine, 0x40000000 | 62) == UNKNOWN  # kill, as x32 calls it
    assert decide(machine, read, architecture=0x40000003) == seccomp.KILL  # as i386 calls it


def test_other_machines_have_no_filter() -> None:
    assert seccomp.program("riscv64") is None


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_as_short_as_the_kernel_wants(machine: str) -> None:
    code = seccomp.program(machine)
    assert code is not None
    assert len(code) % 8 == 0
    assert len(code) // 8 < 4096


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        (1, (0x1FFF,)),
        (3, (0x7FFF,)),
        (4, (0x7FFF, 3)),
        (5, (0xFFFF, 3)),
        (6, (0xFFFF, 3, 3)),
        (9, (0xFFFF, 3, 3)),
    ],
)
def test_landlock_refuses_all_that_the_kernel_knows(version: int, rules: tuple[int, ...]) -> None:
    assert landlock.rules_for(version) == struct.pack(f"={len(rules)}Q", *rules)
