"""Landlock: what files a process may open, where the kernel gives no namespaces (most containers).

It governs opening, making and removing files; the filter of system calls refuses what else there
is: modes, owners, times, truncation, the network, other processes.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights over files a version of the interface knows; later ones know 16."""


def version(libc: Any) -> int:
    """Of the interface; 0 where there is none."""
    return max(int(libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION)), 0)


def allow_only(libc: Any, shown: list[str], devices: tuple[str, ...]) -> bool:
    """From here on, for good, let this process read what is shown, use the devices, open no more.

    The process must have given up gaining rights (no_new_privs). False where it cannot be had.
    """
    known = version(libc)
    if not known:
        return False
    handled = ctypes.c_uint64((1 << RIGHTS_BY_VERSION.get(known, 16)) - 1)
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(handled), 8, 0)
    if rules < 0:
        return False
    try:
        allowed = [_allow(libc, rules, path, READ_FILE) for path in shown]
        allowed += [_allow(libc, rules, path, READ_FILE | WRITE_FILE) for path in devices]
        return all(allowed) and libc.syscall(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(libc: Any, rules: int, path: str, rights: int) -> bool:
    if os.path.isdir(path):
        rights |= READ_DIR
    place = os.open(path, os.O_PATH)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
    done = libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    os.close(place)
    return bool(done == 0)
