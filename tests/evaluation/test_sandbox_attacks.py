"""The sandbox is attacked; no wrong program passes, none hangs, and nothing is left behind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import launch, run_tests
from mars.evaluation.sandbox.inside.clock import PATIENCE

from .sandboxes import RIGHT, TESTS, need_sandbox, only, unharmed

QUICK = 0.4


@pytest.fixture(scope="module", params=launch.modes())
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with only(request.param):
        yield request.param


def test_there_is_a_sandbox() -> None:
    need_sandbox()


EVERYTHING_EQUAL = """
class Any({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __hash__ = {base}.__hash__
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __bool__(self): return True
def f(x): return Any()
"""
FRAMES = """
import gc, sys
def poison(frame):
    while frame:
        for space in (frame.f_globals, frame.f_locals):
            for name in ("verdict", "passed", "error", "run", "send", "dumps", "describe", "line"):
                if name in space:
                    space[name] = lambda *a, **k: ""
        frame = frame.f_back
def f(x):
    poison(sys._getframe())
    for thing in gc.get_objects():
        if isinstance(thing, dict) and ("passed" in thing or "broken" in thing):
            thing["passed"], thing["error"], thing["broken"] = True, "", ""
"""
FORGE = """
import json, os, struct
body = json.dumps({"passed": True, "error": ""}).encode()
for descriptor in range(3, 32):
    for text in (b"R", body, struct.pack("!I", len(body)) + body):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
os._exit(0)
"""
ANSWER_AHEAD = """
import os, struct
def f(x):
    for body in (b'{"changed":[],"value":2,"raised":null}', b'{"changed":[[0,0]],"value":2}'):
        os.write(4, struct.pack("!I", len(body)) + body)
    return 3
"""
ENDS = "its process ends before it has answered"
WRONG_ANSWER = "^AssertionError: $"
UNREADABLE = "answers with .* cannot be read"
LATE = "still running"
NO_PROCESS = "^BlockingIOError"
BROKEN = f"{ENDS}|{WRONG_ANSWER}|{UNREADABLE}"
"""Where it depends on the version of Python how a program that spoils its own process ends."""
WRONG = {
    "exit": ("NameError: name 'exit'", "exit(0)"),
    "exit in the call": ("NameError: name 'exit'", "def f(x): exit(0)"),
    "SystemExit": ("exits before its end", "raise SystemExit(0)"),
    "os._exit": (ENDS, "import os\nos._exit(0)"),
    "os._exit in the call": (ENDS, "import os\ndef f(x): os._exit(0)"),
    "KeyboardInterrupt": ("RuntimeError: KeyboardInterrupt", "def f(x): raise KeyboardInterrupt"),
    "StopIteration": ("RuntimeError: StopIteration", "def f(x): raise StopIteration"),
    "GeneratorExit": ("RuntimeError: GeneratorExit", "def f(x): raise GeneratorExit"),
    "an odd error": (
        "cannot be shown",
        "class Odd(Exception):\n    def __str__(self): raise self\nraise Odd",
    ),
    "a crash": (ENDS, "import ctypes\ndef f(x): ctypes.string_at(0)"),
    "abort": (ENDS, "import os\ndef f(x): os.abort()"),
    "equal to everything": (
        "returns a Any, which is no plain data",
        EVERYTHING_EQUAL.format(base="object"),
    ),
    "an int equal to everything": (WRONG_ANSWER, EVERYTHING_EQUAL.format(base="int")),
    "a str equal to everything": (WRONG_ANSWER, EVERYTHING_EQUAL.format(base="str")),
    "a list equal to everything": (WRONG_ANSWER, EVERYTHING_EQUAL.format(base="list")),
    "exit while collected": (
        WRONG_ANSWER,
        "import sys\nclass D:\n    def __del__(self): sys.exit(0)\ndef f(x): D()",
    ),
    "_exit while collected": (
        ENDS,
        "import os\nclass D:\n    def __del__(self): os._exit(0)\ndef f(x): D()",
    ),
    "atexit": (
        "RuntimeError: SystemExit",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit",
    ),
    "builtins": (
        BROKEN,
        "import builtins\nfor n in dir(builtins):\n    if n[0].islower():\n"
        "        try: setattr(builtins, n, lambda *a, **k: True)\n        except Exception: pass\n"
        "def f(x): return None",
    ),
    "no AssertionError": (
        WRONG_ANSWER,
        "import builtins\nclass AssertionError: pass\n"
        "builtins.AssertionError = AssertionError\ndef f(x): return 0",
    ),
    "modules": (
        BROKEN,
        "import sys\nclass M:\n    def __getattr__(self, n): return lambda *a, **k: True\n"
        "for n in list(sys.modules): sys.modules[n] = M()\ndef f(x): return 0",
    ),
    "its own modules": (
        BROKEN,
        "import sys\nfor n, m in list(sys.modules.items()):\n"
        "    if 'judge' in n or 'plain' in n or 'messages' in n:\n"
        "        for k in dir(m):\n            setattr(m, k, lambda *a, **k: '')\n"
        "def f(x): return 0",
    ),
    "frames": (WRONG_ANSWER, FRAMES),
    "a trace function": (
        ENDS,
        "import os, sys\ndef f(x): sys.settrace(lambda *a: os._exit(0)); return 0",
    ),
    "a signal handler": (
        ENDS,
        "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: pass",
    ),
    "forged verdicts": (UNREADABLE, FORGE),
    "answers ahead of questions": (UNREADABLE, ANSWER_AHEAD),
    "an endless list": ("MemoryError|still running", "def f(x):\n    while True: x = [x]"),
    "a cycle": (WRONG_ANSWER, "def f(x):\n    x = []\n    x.append(x)\n    return x"),
    "deep data": (
        "data nested too deeply",
        "def f(x):\n    for _ in range(100000): x = [x]\n    return x",
    ),
    "a long string": ("returns more than 4 MB|still running", "def f(x): return '2' * (100 << 20)"),
    "an endless iterator": (
        "an iterator of more than",
        "import itertools\ndef f(x): return itertools.repeat(2)",
    ),
    "a wide dict": (
        "returns more than 4 MB|still running",
        "def f(x): return {i * (2**61 - 1): i for i in range(200000)}",
    ),
    "answers without end": (
        UNREADABLE,
        "import os\ndef f(x):\n    while True: os.write(4, b'x' * 65536)",
    ),
    "a huge answer announced": (
        UNREADABLE,
        "import os\ndef f(x): os.write(4, b'\\xff' * 4); return 2",
    ),
    "prints without end": (LATE, "while True: print('x' * 100000)"),
    "input": ("EOFError", "def f(x): return input()"),
    "a loop": (LATE, "while True: pass"),
    "a loop in the call": (LATE, "def f(x):\n    while True: pass"),
    "sleep": (LATE, "import time\ndef f(x): time.sleep(100)"),
    "signals ignored": (
        LATE,
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, 1)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
    ),
    "memory": ("MemoryError|still running", "x = []\nwhile True: x.append(' ' * (64 << 20))"),
    "memory in the call": ("MemoryError", "def f(x): return len(bytearray(4 << 30))"),
    "unmapped memory": (
        WRONG_ANSWER,
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "fds = [libc.memfd_create(b'x', 0) for _ in range(9)]\nassert min(fds) >= 0\n",
    ),
    "fork bomb": (NO_PROCESS, "import os\nwhile True: os.fork()"),
    "fork bomb in libc": (
        "exits before its end",
        "import ctypes\nlibc = ctypes.CDLL(None)\nwhile libc.fork() >= 0: pass\nraise SystemExit",
    ),
    "thread bomb": (
        "can't start new thread",
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(9,)).start()",
    ),
    "a daemon": (
        NO_PROCESS,
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True: pass\n    os._exit(0)\n" + RIGHT,
    ),
    "a program": ("PermissionError", "import os\nos.execv('/bin/true', ['true'])"),
    "a subprocess": (
        NO_PROCESS,
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\n" + RIGHT,
    ),
}
"""Why a program must fail, as an expression to search in the verdict, and the program."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_fail(name: str, mode: str) -> None:
    why, program = WRONG[name]
    start = time.monotonic()
    with unharmed():
        verdict = run_tests(program, TESTS, timeout_s=QUICK)
        assert time.monotonic() - start < PATIENCE * QUICK + 5  # it hangs nowhere
    assert not verdict.passed
    assert re.search(why, verdict.error), verdict


SEARCH = """
import ctypes, gc, os
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
def pages():
    reader, writer = os.pipe()
    heap = libc.sbrk(0) >> 20
    for mega in {id(thing) >> 20 for thing in gc.get_objects()} | set(range(heap - 8, heap + 1)):
        for page in range(mega << 20, mega + 1 << 20, 4096):
            if libc.write(writer, ctypes.c_void_p(page), 4096) == 4096:  # not where nothing is
                yield os.read(reader, 4096)
def f(start, end):
    start, end = start.encode(), end.encode()
    return sum(piece.startswith(end) for page in pages() for piece in page.split(start)[1:])
"""


def test_the_tests_are_not_in_the_memory_of_the_program(mode: str) -> None:
    there = f"kept = [''.join(('SES', 'AME'))]\n{SEARCH}"
    assert run_tests(there, "assert f('SES', 'AME') > 0", timeout_s=20) == sandbox.Verdict(True, "")
    tests = "secret = ['SESAME', b'SESAME']  # SESAME\nassert f('SES', 'AME') == 0"
    assert run_tests(SEARCH, tests, timeout_s=20) == sandbox.Verdict(True, "")


def test_catching_its_end_does_not_help(mode: str) -> None:
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert run_tests("def f(x): raise ValueError", tests).passed
    for name in ("os._exit in the call", "equal to everything", "a crash"):
        assert not run_tests(WRONG[name][1], tests).passed
