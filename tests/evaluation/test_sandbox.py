"""Right programs pass and wrong ones fail; what goes between them and their tests is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mars.evaluation import sandbox
from mars.evaluation.sandbox import host, run_tests
from mars.evaluation.sandbox.inside import clock
from mars.evaluation.sandbox.inside.clock import read_report

from .processes import cpu_seconds, descendants, ended, open_files
from .sandboxes import RIGHT, TESTS, left_alone, need_sandbox


@pytest.fixture(scope="module", autouse=True)
def _isolated():
    need_sandbox()


def test_right_and_wrong_programs() -> None:
    assert run_tests(RIGHT, TESTS) == sandbox.Verdict(True, "")
    for program, why in {
        "def f(x):\n    return x": "AssertionError",
        "def f(x:\n": "SyntaxError",
        "undefined": "NameError: name 'undefined'",
        "def g(x):\n    return x + 1": "NameError: name 'f'",
        "": "NameError: name 'f'",
        "I would write a function that adds one.": "SyntaxError",
        "f = 3": "TypeError",
    }.items():
        verdict = run_tests(program, TESTS)
        assert not verdict.passed
        assert why in verdict.error
    assert run_tests(RIGHT, "assert f(1) == 3, 'off by one'").error == "AssertionError: off by one"
    assert "SyntaxError" in run_tests(RIGHT, "assert f(").error
    assert "NameError" in run_tests(RIGHT, "assert f(y) == 2").error


def test_programs_of_many_forms() -> None:
    for program in (
        "from __future__ import annotations\nimport json, decimal, asyncio\n" + RIGHT,
        "def f(x: Later):\n    return x + 1\nclass Later: pass".replace("Later", "int", 1),
        "class Adder:\n    def __call__(self, x):\n        return x + 1\nf = Adder()",
        "f = lambda x: x + 1\nif __name__ == '__main__':\n    f = input()",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
        "def f(x):\n    return P(x).x + 1",
        "from operator import add\nfrom functools import partial\nf = partial(add, 1)",
        "import unicodedata as _u\nprint('héllo')\n" + RIGHT,
    ):
        assert run_tests(program, TESTS) == sandbox.Verdict(True, "")
    assert run_tests("Later = 1\ndef f(x: Later) -> Later: return x + 1", TESTS).passed
    assert not run_tests("def f(x: Later): return x + 1", TESTS).passed


def test_each_program_has_a_folder_of_its_own() -> None:
    if not {"bubblewrap", "namespaces"} & set(sandbox.layers()):
        pytest.skip("Landlock lets programs write nowhere")
    program = (
        "import os\ndef f():\n    seen = os.listdir('.')\n    os.makedirs('a/b')\n"
        "    os.symlink('/usr/lib', 'a/b/link')\n    open('left', 'w').write('x')\n    return seen"
    )
    for turn in range(2):
        assert run_tests(program, f"assert f() == []  # {turn}").passed
    server = host._server
    assert server is not None
    assert not os.path.exists(server.folder)


def test_what_is_passed_and_what_changes_come_back() -> None:
    program = (
        "def change(x, d, *, s):\n    x.append(x)\n    x.insert(0, d)\n    d['k'] = s\n"
        "    s.add(1)\n    return x, d, s\n"
        "def same(x): return x\n"
        "def lazily(n): yield from range(n)\n"
        "def fail(kind): raise {'k': KeyError('no'), 'v': ValueError('no', 1)}[kind]\n"
        "class Own(LookupError): pass\n"
        "def own(): raise Own('mine')\n"
        "def partly(x):\n    x.append(1)\n    raise IndexError\n"
        "LIMIT = [3, {'a': (1, 2)}]\nimport math as m\nimport collections\n"
        "def counted(x): return collections.Counter(x)\n"
    )
    tests = """
x, d, s = [5], {}, {0}
r = change(x, d, s=s)
assert r[0] is x and r[1] is d and r[2] is s
assert x[0] is d and x[1] == 5 and x[2] is x and d == {'k': s} and s == {0, 1}
for value in (1, True, None, 1.5, float('inf'), -0.0, 2**100, -2**63, 'é\\ud800', b'x', 1j, (),
              (1,), [], [[1], (2,)], {}, {1: {2}}, {(1, 2): 'x'}, set(), frozenset([1]),
              bytearray(b'ab'), range(3), range(9, 2, -2)):
    back = same(value)
    assert back == value and type(back) is type(value), value
nan = same(float('nan'))
assert nan != nan and same([]) is not same([])
assert list(lazily(3)) == [0, 1, 2] and lazily(2) != [0, 1]
assert next(lazily(2)) == 0 and set({1: 2}.keys()) == set(same({1: 2}.keys()))
assert same({'b': 1, 'a': 2}.items()) == {'b': 1, 'a': 2}.items()
assert counted('aab') == {'a': 2, 'b': 1} and type(counted('')) is dict
for kind, error in (('k', KeyError), ('v', ValueError)):
    try:
        fail(kind)
    except error as caught:
        assert caught.args[0] == 'no'
    else:
        raise RuntimeError
try:
    own()
except LookupError as caught:
    assert caught.args == ('mine',)
y = []
try:
    partly(y)
except IndexError:
    pass
assert y == [1]
assert LIMIT == [3, {'a': (1, 2)}] and m.floor(2.5) == 2
"""
    assert run_tests(program, tests) == sandbox.Verdict(True, "")


def test_what_cannot_be_passed_is_said() -> None:
    own = "class A: pass\ndef f(x): return A()"
    assert "returns a A, which is no plain data" in run_tests(own, TESTS).error
    assert "the tests pass a function" in run_tests(RIGHT, "f(lambda: 1)").error


def test_a_problem_s_helpers_are_the_judge_s_own() -> None:
    problem = 'def helper(x):\n    return x * 2\n\ndef f(x):\n    """Half of it."""\n'
    cheat = problem + "    global helper\n    helper = lambda y: x\n    return x\n"
    tests = "assert helper(f(10)) == 10"
    assert run_tests(problem + "    return x // 2", problem + tests).passed
    assert run_tests(cheat, tests).passed
    assert not run_tests(cheat, problem + tests).passed


def test_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tests(RIGHT, "assert 'once'").passed
    monkeypatch.setattr(host, "_judge", lambda *_: pytest.fail("ran again"))
    assert run_tests(RIGHT, "assert 'once'").passed


def test_a_killed_server_is_replaced() -> None:
    assert run_tests(RIGHT, "assert 'before the kill'").passed
    server = host._server
    assert server is not None
    below = descendants(server.process.pid)
    server.process.kill()
    server.process.wait()
    assert run_tests(RIGHT, "assert 'after the kill'").passed
    assert ended(below)
    assert not Path(server.folder).exists()


def test_an_interrupt_leaves_no_verdict_for_the_next_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    sandbox.layers()
    with monkeypatch.context() as patch:
        patch.setattr(host._Server, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_tests(RIGHT, "assert 'interrupted'")
    assert not run_tests("def f(x):\n    return 7", f"{TESTS}  # after it").passed
    assert run_tests(RIGHT, f"{TESTS}  # after it").passed


def test_an_interrupted_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: Any, _: float) -> Any:
        started.append(server)
        raise KeyboardInterrupt

    host.close()
    started: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(host._Server, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sandbox.layers()
    [server] = started
    assert server.process.poll() is not None
    assert not Path(server.folder).exists()


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os; from mars.evaluation.sandbox import host; host.layers(); "
        "print(host._server.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    here = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, env=here)
    pid = int(out.stdout)
    assert ended({pid})
    assert not list(tmp_path.glob("mars-sandbox-*"))


@pytest.mark.parametrize(("works", "said"), [(True, b"done"), (False, None)])
def test_a_slow_machine_is_told_from_an_idle_program(works, said):
    """A second of the wall clock is many times the limit; only who computes may take it."""
    reader, writer = os.pipe()
    script = (
        "import os, sys, time\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        f"    sum(range({200_000 if works else 0}))\n"
        f"os.write({writer}, b'done')\n"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", script], pass_fds=[writer]) as child:
        os.close(writer)
        found = read_report(reader, (child.pid,), 0.15, 100)
        child.kill()
    os.close(reader)
    assert found == said


def test_time_in_which_all_stand_still_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was stopped, or gave this process no turn, comes back much later."""
    reader, writer = os.pipe()
    turns = iter([False, False, True, True])
    now = 0.0

    def late(wanted, *_):
        nonlocal now
        now += 20.0
        if not next(turns):
            return [], [], []
        if now == 60.0:
            os.write(writer, b"done")
            os.close(writer)
        return wanted, [], []

    monkeypatch.setattr(clock, "select", SimpleNamespace(select=late))
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(clock, "cpu_seconds", lambda pids: 0.0)
    assert read_report(reader, (1,), 3.0, 100) == b"done"
    os.close(reader)


PROGRAMS = {
    RIGHT: True,
    "def f(x):\n    return x": False,
    "import os\nos._exit(1)": False,
    "import os\nos.fork()": False,
    "try:\n    open('left', 'w').close()\nexcept OSError:\n    pass\n" + RIGHT: True,
}
CPU_S = 0.2
"""Many times what a program takes; less, and one core judges hundreds a minute."""


def test_hundreds_of_programs_leave_nothing_behind() -> None:
    host.close()
    sandbox.layers()
    server = host._server
    assert server is not None
    pids = {server.process.pid, *descendants(server.process.pid)}
    before = {pid: open_files(pid) for pid in (os.getpid(), *pids)}
    start = cpu_seconds(pids)
    for turn in range(20):
        for program, right in PROGRAMS.items():
            assert run_tests(program, f"{TESTS}  # turn {turn}").passed == right
    assert host._server is server
    assert left_alone(server.process.pid, pids)
    assert {pid: open_files(pid) for pid in before} == before
    assert not os.path.exists(server.folder)
    assert (cpu_seconds(pids) - start) / (20 * len(PROGRAMS)) < CPU_S
