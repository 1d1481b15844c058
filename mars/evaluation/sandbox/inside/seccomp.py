"""A filter of system calls, as a small BPF program: what no function under test needs is refused.

New processes and threads, other processes (signals, tracing, their memory), the network, other
programs, mounts and namespaces, modes and owners of files, memory that no limit counts, kernel
interfaces known for their holes. Known for x86-64 and AArch64; elsewhere there is no filter.
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
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4
X32_BIT = 0x40000000
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the table, and the kernel's name of the architecture."""

NO_PROCESSES = {"fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435)}
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # the network
    "socket": (41, 198),
    "accept": (43, 202),
    "accept4": (288, 242),
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
    "kcmp": (312, 272),
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
    # memory that no limit counts
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
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


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _instruction(code: int, value: int, hit: int = 0, miss: int = 0) -> bytes:
    return struct.pack("HBBI", code, hit, miss, value)


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
        _instruction(JUMP_AT_LEAST, X32_BIT, miss=1),
        _instruction(RETURN, ERRNO | errno.ENOSYS),
    ]
    for calls, error in ((NO_PROCESSES, errno.EAGAIN), (REFUSED, errno.EPERM)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                code.append(_instruction(JUMP_EQUAL, number, miss=1))
                code.append(_instruction(RETURN, ERRNO | error))
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
