"""`code_eval` counts as the metric it stands for, and HumanEval's own programs pass in it."""

from __future__ import annotations

import json
from math import comb
from typing import Any

import pytest

from mars.evaluation import sandbox
from mars.evaluation.code_eval import METRIC, code_eval, pass_at
from mars.evaluation.sandbox import run_tests

from .six import BENCH, needs_bench

RIGHT, WRONG = "def add(a, b): return a + b", "def add(a, b): return a * b"


@pytest.fixture(scope="module", autouse=True)
def _isolated() -> None:
    try:
        sandbox.layers()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))


def test_convention() -> None:
    scores, details = METRIC.compute(
        references=["assert add(2, 3)==5", "assert add(1, 1) == 2"],
        predictions=[[WRONG, RIGHT], [WRONG, WRONG]],
        k=[1, 2, 3],
    )
    assert scores == {"pass@1": 0.25, "pass@2": 0.5}
    assert set(details) == {0, 1}
    number, row = details[0][1]
    assert (number, row) == (
        1,
        {"task_id": 0, "passed": True, "result": "passed", "completion_id": 1},
    )
    assert details[0][0][1]["result"] == "failed: AssertionError: "
    assert code_eval([[RIGHT]], ["assert add(2, 3) == 5"])[0] == {"pass@1": 1.0}
    with pytest.raises(ValueError, match="shorter"):
        code_eval([[RIGHT], [WRONG]], ["assert add(2, 3) == 5"])


@pytest.mark.parametrize("programs", [1, 5, 64])
def test_pass_at_k_is_unbiased(programs: int) -> None:
    for passed in range(programs + 1):
        for k in range(1, programs + 1):
            exact = 1 - comb(programs - passed, k) / comb(programs, k)
            assert pass_at(k, programs, passed) == pytest.approx(exact)


PROBLEM = 'def add(a: int, b: int) -> int:\n    """Their sum.\n    >>> add(1, 2)\n    3\n    """\n'
COMPLETIONS = {
    "the body": ("    return a + b\n", True),
    "the body after a remark": ("    # easy\n    return a + b\n", True),
    "an import inside": ("    import operator\n    return operator.add(a, b)\n", True),
    "an import outside": ("    return plus(a, b)\n\nfrom operator import add as plus\n", True),
    "a class after it": ("    return Sum(a, b).value\n\nclass Sum:\n    def __init__(self, a, b):\n"
                         "        self.value = a + b\n", True),
    "written again": ("    pass\n\ndef add(a, b):\n    return a + b\n", True),
    "fenced": ("```python\ndef add(a, b):\n    return a + b\n```", False),
    "prose": ("Here is the function that you asked for.", False),
    "prose around": ("    return a + b\n\nThis adds the two numbers.\n", False),
    "nothing": ("", False),
    "only a remark": ("    # it adds\n", False),
    "unfinished": ("    return a +", False),
    "its own tests fail": ("    return a + b\n\nassert add(1, 1) == 3\n", False),
    "asks": ("    return int(input()) + b\n", False),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions_have_their_verdicts(name: str) -> None:
    completion, passes = COMPLETIONS[name]
    tests = "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)"
    assert code_eval([[PROBLEM + completion]], [tests])[0]["pass@1"] == passes


def problems() -> list[dict[str, Any]]:
    path = BENCH / "humaneval" / "test.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def with_check(problem: dict[str, Any]) -> str:
    return f"{problem['test']}\ncheck({problem['entry_point']})"


@needs_bench
def test_every_solution_of_humaneval_passes() -> None:
    rows = problems()
    assert len(rows) == 164
    scores, details = code_eval(
        [[row["prompt"] + row["canonical_solution"]] for row in rows],
        [row["prompt"] + with_check(row) for row in rows],
        k=[1],
        timeout=20,
    )
    assert scores == {"pass@1": 1.0}, [d for d in details.values() if not d[0][1]["passed"]]


PLAIN_WRONG = ("None", "0", "1", "-1", "0.5", "''", "'a'", "True", "False", "[]", "[0]", "{}", "()")
EQUAL = """
class Equal(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = int.__hash__
    def __sub__(self, other): return 0
    __rsub__ = __abs__ = __sub__
"""


@needs_bench
def test_no_constant_passes_humaneval() -> None:
    """Nor a function that raises or gives an object that says it equals all, nor the argument."""
    bodies = [f"return {value}" for value in PLAIN_WRONG]
    bodies += ["raise ValueError", "raise StopIteration", "return args[0]", "return Equal(7)"]
    wrong = "\n".join(f"def wrong_{i}(*args): {body}" for i, body in enumerate(bodies))
    each = "".join(
        f"\ntry:\n    check(wrong_{i})\nexcept Exception:\n    pass\n"
        f"else:\n    raise RuntimeError({body!r})"
        for i, body in enumerate(bodies)
    )
    for row in problems():
        program = f"{row['prompt']}{row['canonical_solution']}\n{EQUAL}\n{wrong}\n"
        verdict = run_tests(program, row["test"] + each, timeout_s=20)
        assert verdict.passed, (row["task_id"], verdict)


@needs_bench
@pytest.mark.parametrize(
    "body", ["return object()", "raise SystemExit(0)", "import os; os._exit(0)"]
)
def test_no_other_way_passes_humaneval(body: str) -> None:
    rows = problems()[:: 1 if body == "return object()" else 16]
    programs = [[f"{row['prompt']}    {body}\n"] for row in rows]
    assert code_eval(programs, list(map(with_check, rows)), k=[1])[0] == {"pass@1": 0.0}
