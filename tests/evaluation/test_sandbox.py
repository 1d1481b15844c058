"""The sandbox is attacked; no wrong program passes, none hangs, and the next one runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import run_program

QUICK = 0.7


def fails(source: str, because: str = "", timeout_s: float = QUICK) -> None:
    verdict = run_program(source, timeout_s)
    assert not verdict.passed
    assert because in verdict.error
    assert run_program("assert 1 + 1 == 2").passed


def test_right_and_wrong_programs() -> None:
    assert run_program("def f(x):\n    return x + 1\nassert f(1) == 2") == sandbox.Verdict(True, "")
    fails("def f(x):\n    return x\nassert f(1) == 2, 'off by one'", "AssertionError: off by one")
    fails("def f(x:\n", "SyntaxError")
    fails("undefined", "NameError")
    assert run_program("import math, re, json, decimal\nassert math.sqrt(4) == 2").passed
    assert run_program("if __name__ == '__main__':\n    x = 1\nassert x").passed


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit",
        "raise SystemExit(0)",
        "import sys\nsys.exit(0)\nassert False",
        "import os\nos._exit(0)",
        "exit(0)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nimport time\ntime.sleep(9)",
        "import os\nos.write(3, b'x' * 100000)\nassert False",
        "class Odd(Exception):\n    def __str__(self):\n        raise self\nraise Odd",
        "raise KeyboardInterrupt",
    ],
)
def test_leaving_early_is_not_passing(source: str) -> None:
    fails(source)


def test_endless_loop_is_killed() -> None:
    start = time.monotonic()
    fails("while True:\n    pass", "still running")
    fails("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nwhile True: pass")
    fails("import time\ntime.sleep(100)", "still running")
    assert time.monotonic() - start < 8


def test_memory_and_output_are_limited() -> None:
    fails("x = ' ' * (1 << 30)", "MemoryError")
    fails("while True:\n    print('x' * 10000)", "still running")
    fails("open('big', 'w').write('x' * 10**8)")


@pytest.mark.skipif(sys.platform != "linux", reason="process limits differ")
def test_processes_are_limited() -> None:
    fails("import os\nwhile True:\n    os.fork()", "BlockingIOError")


def test_the_watcher_survives(tmp_path: Path) -> None:
    for victim in ("os.getppid()", "-1", "1"):
        run_program(f"import os\nos.kill({victim}, 9)", QUICK)
        assert run_program(f"assert 'after' == 'after'  # {victim}").passed


def test_no_environment_no_input_own_folder() -> None:
    source = (
        "import os\nassert os.listdir('.') == []\nassert not {'HOME', 'PATH'} & set(os.environ)"
    )
    assert run_program(source).passed
    assert run_program("open('left behind', 'w').close()").passed
    assert run_program(source + "\n").passed
    fails("input()", "EOFError")


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    if "read-only file system" not in sandbox.layers():
        pytest.skip("needs user namespaces")
    tmp_path.chmod(0o777)
    target = tmp_path / "outside"
    fails(f"open({str(target)!r}, 'w').write('x')")
    fails(f"import os\nos.symlink({str(target)!r}, 'link')\nopen('link', 'w').write('x')")
    assert not target.exists()


def test_no_network() -> None:
    if "no network" not in sandbox.layers():
        pytest.skip("needs network namespaces")
    fails(
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n"
        "socket.create_connection(s.getsockname(), 1)",
        "OSError",
    )


def test_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program("assert 'once'").passed
    monkeypatch.setattr(sandbox, "_run", lambda *_: pytest.fail("ran again"))
    assert run_program("assert 'once'").passed


def test_a_killed_runner_is_replaced() -> None:
    assert run_program("assert 'before the kill'").passed
    runner = sandbox._runner
    assert runner is not None
    runner.process.kill()
    runner.process.wait()
    assert run_program("assert 'after the kill'").passed


def test_the_runner_ends_with_its_parent() -> None:
    code = (
        "import os; from mars.evaluation import sandbox; sandbox.layers(); "
        "print(sandbox._runner.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(out.stdout)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and ") Z " in stat.read_text():
            return
        time.sleep(0.05)
    pytest.fail("the runner outlives its parent")
