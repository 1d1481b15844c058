"""A filter of system calls, as a small BPF program: what no function under test needs is refused.

New processes and threads, other processes (signals, tracing, their memory, limits and turns on the
processor), the network, other programs, mounts and namespaces, modes and owners of files, memory
that no limit counts, kernel interfaces known for their holes, and whatever came to Linux after this
list. A few calls are allowed with some arguments only. Known for x86-64 and AArch64; elsewhere
there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
FIRST_UNKNOWN = 463
"""This number and all above it belong to calls newer than these tables, or to x32's."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the table, and the kernel's name of the architecture."""

NO_PROCESSES = {"fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435)}
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # the network
    "socket": (41, 198),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    # other processes
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # other programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # mounts and namespaces
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # what is known of files besides their content
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # memory that no limit counts, and other programs' that is known by a number or a name
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_setup": (206, 0),
    # the kernel itself
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "vhangup": (153, 58),
}
"""System calls by name, with their numbers on x86-64 and AArch64."""

ONLY: dict[tuple[str, int], tuple[tuple[int, int], tuple[int, ...]]] = {
    # one's own limits
    ("prlimit64", 0): ((302, 261), (0,)),
    # copies, flags and locks: nobody's signals (F_SETOWN, F_SETSIG), no leases
    ("fcntl", 1): ((72, 25), (*range(8), 1030)),
    # TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    ("ioctl", 1): ((16, 29), (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # names: a program cannot choose to outlive its parent (PR_SET_PDEATHSIG), or to be traced
    ("prctl", 0): ((157, 167), (3, 15, 16)),
    # AF_UNIX and SOCK_STREAM with any flags, as for asyncio: datagrams go to any address
    ("socketpair", 0): ((53, 199), (1,)),
    ("socketpair", 1): ((53, 199), (0x1, 0x801, 0x80001, 0x80801)),
}
"""By call and argument, counted from 0: the call's numbers, and the argument's allowed values."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _instruction(code: int, value: int, hit: int = 0, miss: int = 0) -> bytes:
    return struct.pack("HBBI", code, hit, miss, value)


def _only(number: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse a call unless an argument, an int to the kernel, has one of the listed values."""
    load = _instruction(LOAD, ARGUMENTS_OFFSET + 8 * argument)
    left = range(len(values), 0, -1)  # instructions from each comparison to the refusal
    compare = [
        _instruction(JUMP_EQUAL, value, hit=n) for value, n in zip(values, left, strict=True)
    ]
    refuse = _instruction(RETURN, ERRNO | errno.EPERM)
    body = [load, *compare, refuse]
    return [
        _instruction(LOAD, NUMBER_OFFSET),
        _instruction(JUMP_EQUAL, number, miss=len(body)),
        *body,
    ]


def program(machine: str) -> bytes | None:
    """The filter for a machine, or None where its system calls are not known here."""
    if machine not in MACHINES:
        return None
    column, architecture = MACHINES[machine]
    code = [
        _instruction(LOAD, ARCHITECTURE_OFFSET),
        _instruction(JUMP_EQUAL, architecture, hit=1),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER_OFFSET),
        _instruction(JUMP_AT_LEAST, FIRST_UNKNOWN, miss=1),
        _instruction(RETURN, ERRNO | errno.ENOSYS),
    ]
    for calls, error in ((NO_PROCESSES, errno.EAGAIN), (REFUSED, errno.EPERM)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                code.append(_instruction(JUMP_EQUAL, number, miss=1))
                code.append(_instruction(RETURN, ERRNO | error))
    for (_, argument), (allowed_on, values) in ONLY.items():
        code += _only(allowed_on[column], argument, values)
    return b"".join([*code, _instruction(RETURN, ALLOW)])


def install(libc: Any) -> bool:
    """Filter this process from here on, for good; False where that cannot be had."""
    if not hasattr(os, "uname"):
        return False
    code = program(os.uname().machine)
    if os.uname().sysname != "Linux" or code is None:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(filter_), 0, 0) == 0
