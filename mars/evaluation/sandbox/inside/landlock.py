"""Landlock: what files a process may open, where the kernel gives no namespaces (most containers).

It governs opening, making and removing files, and keeps processes outside from being traced; newer
kernels have it refuse TCP, signals and abstract sockets too. The filter of system calls refuses
these everywhere, and what else there is: modes, owners, times, truncation, other processes' limits.
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
TCP_SINCE, BIND_TCP, CONNECT_TCP = 4, 1 << 0, 1 << 1
SCOPES_SINCE, ABSTRACT_SOCKETS, SIGNALS = 6, 1 << 0, 1 << 1


Parts = tuple[list[str], list[str]]
"""What may be read whole, and the folders of which only the names may."""


def parts(shown: list[str], hidden: list[str]) -> Parts:
    """What is shown without what is hidden, as Landlock can only add to what may be read.

    A folder above a hidden one is taken apart: its entries, and the names that it holds. Links in
    it are left out: what they lead to is an entry itself, or was not shown.
    """
    whole: list[str] = []
    listed: list[str] = []
    left = sorted({os.path.realpath(path) for path in shown})
    closed = {os.path.realpath(path) for path in hidden}
    while left:
        path = left.pop(0)
        if path in closed:
            continue
        if not any(other.startswith(path + "/") for other in closed):
            whole.append(path)
            continue
        listed.append(path)
        with os.scandir(path) as entries:
            left += sorted(entry.path for entry in entries if not entry.is_symlink())
    return whole, listed


def version(libc: Any) -> int:
    """Of the interface; 0 where there is none."""
    return max(int(libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION)), 0)


def rules_for(version: int) -> bytes:
    """All that a version of the interface can refuse: files, TCP, signals and abstract sockets."""
    fields = [(1 << RIGHTS_BY_VERSION.get(version, 16)) - 1]
    if version >= TCP_SINCE:
        fields.append(BIND_TCP | CONNECT_TCP)
    if version >= SCOPES_SINCE:
        fields.append(ABSTRACT_SOCKETS | SIGNALS)
    return struct.pack(f"={len(fields)}Q", *fields)


def allow_only(libc: Any, readable: Parts, devices: tuple[str, ...]) -> bool:
    """From here on, for good, let this process read these parts, use the devices, open no more.

    The process must have given up gaining rights (no_new_privs). False where it cannot be had.
    """
    known = version(libc)
    if not known:
        return False
    handled = rules_for(known)
    rules = libc.syscall(CREATE_RULESET, handled, len(handled), 0)
    if rules < 0:
        return False
    try:
        whole, listed = readable
        allowed = [_allow(libc, rules, path, READ_FILE) for path in whole]
        allowed += [_allow(libc, rules, path, 0) for path in listed]
        allowed += [_allow(libc, rules, path, READ_FILE | WRITE_FILE) for path in devices]
        return all(allowed) and libc.syscall(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(libc: Any, rules: int, path: str, rights: int) -> bool:
    if os.path.isdir(path):
        rights |= READ_DIR
    try:
        place = os.open(path, os.O_PATH)
    except FileNotFoundError:  # removed since: there is nothing to allow
        return True
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
    done = libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    os.close(place)
    return bool(done == 0)
