"""The sandbox is attacked; no wrong program passes, none hangs, and nothing is left behind."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import host, run_tests
from mars.evaluation.sandbox.inside.clock import PATIENCE

from .processes import descendants

QUICK = 0.4
RIGHT = "def f(x):\n    return x + 1"
TESTS = "assert f(1) == 2 and f(40) == 41"


@pytest.fixture(scope="module", autouse=True)
def _isolated():
    """Attacks are run in a sandbox only, whatever else was allowed in this process."""
    host.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "_unprotected", False)
        try:
            sandbox.layers()
        except sandbox.SandboxError as error:
            pytest.skip(str(error))
        yield
    host.close()


@pytest.fixture
def unharmed():
    """The server that ran before the attack runs after it, with no process more."""
    assert run_tests(RIGHT, TESTS).passed
    server = host._server
    assert server is not None
    before = descendants(server.process.pid)
    yield
    assert run_tests(RIGHT, f"{TESTS}\n# {time.monotonic()}").passed
    assert host._server is server
    for _ in range(200):  # the last supervisor ends just after its answer
        if descendants(server.process.pid) <= before:
            return
        time.sleep(0.02)
    assert descendants(server.process.pid) <= before


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
WRONG = {
    "exit": "exit(0)",
    "exit in the call": "def f(x): exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef f(x): os._exit(0)",
    "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "StopIteration": "def f(x): raise StopIteration",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "an odd error": "class Odd(Exception):\n    def __str__(self): raise self\nraise Odd",
    "a crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "abort": "import os\ndef f(x): os.abort()",
    "equal to everything": EVERYTHING_EQUAL.format(base="object"),
    "an int equal to everything": EVERYTHING_EQUAL.format(base="int"),
    "a str equal to everything": EVERYTHING_EQUAL.format(base="str"),
    "a list equal to everything": EVERYTHING_EQUAL.format(base="list"),
    "exit while collected": "import sys\nclass D:\n    def __del__(self): sys.exit(0)\n"
    "def f(x): D()",
    "_exit while collected": "import os\nclass D:\n    def __del__(self): os._exit(0)\n"
    "def f(x): D()",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit",
    "builtins": "import builtins\nfor n in dir(builtins):\n    if n[0].islower():\n"
    "        try: setattr(builtins, n, lambda *a, **k: True)\n        except Exception: pass\n"
    "def f(x): return None",
    "no AssertionError": "import builtins\nclass AssertionError: pass\n"
    "builtins.AssertionError = AssertionError\ndef f(x): return 0",
    "modules": "import sys\nclass M:\n    def __getattr__(self, n): return lambda *a, **k: True\n"
    "for n in list(sys.modules): sys.modules[n] = M()\ndef f(x): return 0",
    "its own modules": "import sys\nfor n, m in list(sys.modules.items()):\n"
    "    if 'judge' in n or 'plain' in n or 'messages' in n:\n"
    "        for k in dir(m):\n            setattr(m, k, lambda *a, **k: '')\ndef f(x): return 0",
    "frames": FRAMES,
    "a trace function": "import sys\ndef f(x): sys.settrace(lambda *a: exit(0)); return 0",
    "a signal handler": "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: pass",
    "forged verdicts": FORGE,
    "answers ahead of questions": ANSWER_AHEAD,
    "an endless list": "def f(x):\n    while True: x = [x]",
    "a cycle": "def f(x):\n    x = []\n    x.append(x)\n    return x",
    "deep data": "def f(x):\n    for _ in range(100000): x = [x]\n    return x",
    "a long string": "def f(x): return '2' * (100 << 20)",
    "an endless iterator": "import itertools\ndef f(x): return itertools.repeat(2)",
    "a wide dict": "def f(x): return {i * (2**61 - 1): i for i in range(200000)}",
    "answers without end": "import os\ndef f(x):\n    while True: os.write(4, b'x' * 65536)",
    "a huge answer announced": "import os\ndef f(x): os.write(4, b'\\xff' * 4); return 2",
    "prints without end": "while True: print('x' * 100000)",
    "input": "def f(x): return input()",
    "a loop": "while True: pass",
    "a loop in the call": "def f(x):\n    while True: pass",
    "sleep": "import time\ndef f(x): time.sleep(100)",
    "signals ignored": "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, 1)\n"
    "    except (OSError, ValueError): pass\nwhile True: pass",
    "memory": "x = []\nwhile True: x.append(' ' * (64 << 20))",
    "memory in the call": "def f(x): return len(bytearray(4 << 30))",
    "unmapped memory": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "fds = [libc.memfd_create(b'x', 0) for _ in range(9)]\nassert min(fds) >= 0\n",
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb in libc": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "while libc.fork() >= 0: pass\nraise SystemExit",
    "thread bomb": "import threading, time\n"
    "while True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "a daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        while True: pass\n    os._exit(0)\n" + RIGHT,
    "a program": "import os\nos.execv('/bin/true', ['true'])",
    "a subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\n" + RIGHT,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_fail(name: str, unharmed: None) -> None:
    start = time.monotonic()
    assert not run_tests(WRONG[name], TESTS, timeout_s=QUICK).passed
    assert time.monotonic() - start < PATIENCE * QUICK + 5  # it hangs nowhere


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


def test_the_tests_are_not_in_the_memory_of_the_program() -> None:
    there = f"kept = [''.join(('SES', 'AME'))]\n{SEARCH}"
    assert run_tests(there, "assert f('SES', 'AME') > 0", timeout_s=20) == sandbox.Verdict(True, "")
    tests = "secret = ['SESAME', b'SESAME']  # SESAME\nassert f('SES', 'AME') == 0"
    assert run_tests(SEARCH, tests, timeout_s=20) == sandbox.Verdict(True, "")


def test_catching_its_end_does_not_help() -> None:
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert run_tests("def f(x): raise ValueError", tests).passed
    for name in ("os._exit in the call", "equal to everything", "a crash"):
        assert not run_tests(WRONG[name], tests).passed


CALLS = {
    "home": "[name for name in os.listdir({home!r}) if name not in os.__file__][0]",
    "this file": "open({here!r}).read()",
    "passwd": "open('/etc/passwd').read()",
    "environment": "dict(os.environ) or 1 / 0",
    "proc": "os.listdir('/proc')",
    "own proc": "open('/proc/self/environ').read()",
    "memory of others": "open('/proc/self/mem', 'rb+')",
    "root of others": "os.listdir('/proc/1/root')",
    "own root": "os.listdir('/proc/self/root')",
    "sys": "os.listdir('/sys')",
    "devices": "open('/dev/mem') or open('/dev/sda')",
    "writing outside": "open({outside!r}, 'w').write('x')",
    "writing to the library": "open(os.__file__ + 'x', 'w')",
    "writing to the root": "open('/x', 'w')",
    "writing over the library": "open(os.__file__, 'a')",
    "removing a file": "os.unlink({victim!r})",
    "emptying a file": "open({victim!r}, 'w')",
    "a link out": "os.symlink({outside!r}, 'link') or open('link', 'w').write('x')",
    "a link to read": "os.symlink({here!r}, 'link') or open('link').read()",
    "a hard link": "os.link(os.__file__, 'link') or open('link', 'a')",
    "dots": "open('../../../../../../' + {here!r})",
    "chroot": "os.chroot('.')",
    "a device": "os.mknod('null', 0o20666, os.makedev(1, 3)) or open('null', 'w')",
    "mount": "0 / (1 + libc.mount(b'tmpfs', {folder!r}.encode(), b'tmpfs', 0, b''))",
    "user namespace": "0 / (1 + libc.unshare(0x10000000))",
    "trace": "0 / (1 + libc.ptrace(0, 0, 0, 0))",
    "shared memory": "0 / (1 + libc.shmget(7, 1 << 20, 0o1600))",
    "keys": "0 / (1 + libc.syscall(250, 0, -3, 0))",
    "becoming root": "os.setuid(0) or os.geteuid() == 0 or 1 / 0",
    "internet socket": "socket.socket()",
    "unix socket": "socket.socket(socket.AF_UNIX).connect('\\0x')",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "this machine": "socket.create_connection(('127.0.0.1', {port}), 1)",
    "killing the parent": "os.kill(os.getppid(), 9)",
    "killing the group": "os.killpg(0, 9)",
    "reaching everything": "os.kill(-1, 0)",
    "higher limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "a great file": "open('great', 'w').write('x' * (64 << 20))",
    "filling the scratch folder": "[open(f'f{{i}}', 'wb').write(bytes(1 << 20)) "
    "for i in range(64)]",
    "files without end": "[open(f'f{{i}}', 'wb').close() for i in range(9999)]",
    "descriptors without end": "[open('/dev/null') for _ in range(99)]",
}
"""Expressions that must raise in a program. Where one does not, it does no harm to the machine."""


@pytest.fixture(scope="module")
def port():
    """A port of this machine where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", CALLS)
def test_ways_out_are_shut(name: str, tmp_path: Path, port: int, unharmed: None) -> None:
    outside, victim = tmp_path / "outside", tmp_path / "victim"
    victim.write_text("kept")
    for path, mode in ((victim, 0o666), (tmp_path, 0o777)):
        path.chmod(mode)
    expression = CALLS[name].format(
        home=str(Path.home()),
        here=__file__,
        outside=str(outside),
        victim=str(victim),
        folder=str(tmp_path),
        port=port,
    )
    program = (
        "import ctypes, os, resource, socket\nlibc = ctypes.CDLL(None)\n"
        f"def f():\n    {expression}\n    return True"
    )
    tests = "try:\n    out = f()\nexcept Exception:\n    out = False\nassert not out"
    verdict = run_tests(program, tests, timeout_s=5.0)
    assert verdict.passed, verdict
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]
    assert victim.read_text() == "kept"
