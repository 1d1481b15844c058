"""`evaluate`'s `code_eval` metric, computed in the sandbox and without a download."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mars.evaluation.sandbox import run_tests

Details = dict[int, list[tuple[int, dict[str, Any]]]]


def code_eval(
    predictions: Sequence[Sequence[str]],
    references: Sequence[str],
    k: Sequence[int] = (1, 10, 100),
    timeout: float = 3.0,
) -> tuple[dict[str, float], Details]:
    """pass@k of programs, with the calling convention of `evaluate.load("code_eval").compute`.

    Args:
        predictions: for each problem, its programs.
        references: for each problem, the source of its tests.
        k: which pass@k to estimate; one for which a problem has too few programs is left out.
        timeout: seconds a program may take.

    Returns:
        {"pass@<k>": share}, and for each problem [(number of the program, {"task_id", "passed",
        "result", "completion_id"}), …], where the result is "passed" or says why not.

    Raises:
        SandboxError: no sandbox can be had here; the message names the remedy.
        ValueError: not as many references as problems.
    """
    details: Details = {}
    for task, (programs, tests) in enumerate(zip(predictions, references, strict=True)):
        details[task] = []
        for number, program in enumerate(programs):
            verdict = run_tests(program, tests, timeout_s=timeout)
            result = "passed" if verdict.passed else f"failed: {verdict.error}"
            row = {"task_id": task, "passed": verdict.passed, "result": result}
            details[task].append((number, row | {"completion_id": number}))
    totals = [len(rows) for rows in details.values()]
    passed = [sum(row["passed"] for _, row in rows) for rows in details.values()]
    scores = {
        f"pass@{of}": float(
            np.mean([pass_at(of, n, right) for n, right in zip(totals, passed, strict=True)])
        )
        for of in k
        if totals and min(totals) >= of
    }
    return scores, details


def pass_at(k: int, programs: int, passed: int) -> float:
    """The unbiased estimate of the chance that one of `k` programs passes, from `programs` tried.

    That is 1 - C(programs - passed, k) / C(programs, k), as a product that does not overflow.
    """
    if programs - passed < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(programs - passed + 1, programs + 1)))


METRIC = SimpleNamespace(compute=code_eval)
"""What stands in for the object that `evaluate.load("code_eval")` gives."""
