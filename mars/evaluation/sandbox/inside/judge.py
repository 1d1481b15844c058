"""The process that runs the tests. It never runs the program: it asks the candidate's process.

Names that the tests use and the program defines stand for calls over a pipe. What comes back is
plain data, made here, so nothing of the program takes part in a comparison.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

from . import plain
from .candidate import LONGEST_ERROR, describe
from .messages import receive, send, send_all

READY = b"R"
NOT_RAISED_HERE = ("StopIteration", "StopAsyncIteration")
"""These would end a loop of the tests instead of failing them."""


class BrokenError(BaseException):
    """The program cannot pass any more, whatever the tests make of this."""


class Line:
    """The judge's end of the pipes to the candidate."""

    def __init__(self, questions: int, answers: int) -> None:
        self.questions, self.answers = questions, answers
        self.broken = ""

    def ask(self, question: Any) -> dict[str, Any]:
        """Raises BrokenError where no proper answer comes, and ever after."""
        if self.broken:
            raise BrokenError(self.broken)
        try:
            body = plain.dumps(question)
        except plain.NotPlainError as error:
            raise self.breaks(f"the tests pass {error}") from None
        with contextlib.suppress(OSError):  # it is gone, perhaps after it said why
            send(self.questions, body)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises BrokenError where it is no proper one."""
        try:
            answer = plain.loads(receive(self.answers, plain.LIMIT_BYTES))
        except EOFError:
            raise self.breaks("its process ends before it has answered") from None
        except (ValueError, plain.NotPlainError):
            raise self.breaks("answers with too much, or with what cannot be read") from None
        if type(answer) is not dict:
            raise self.breaks("answers with what cannot be read")
        if "refused" in answer:
            raise self.breaks(f"returns {answer['refused']}"[:LONGEST_ERROR])
        return answer

    def breaks(self, why: str) -> BrokenError:
        """The error to raise now; remembered, so that catching it does not help."""
        self.broken = why
        return BrokenError(why)


def call(line: Line, name: str) -> Callable[..., Any]:
    """A function that has the candidate's function of this name called."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        table: list[Any] = []
        try:
            packed = plain.Writer(table).node((args, kwargs))
        except plain.NotPlainError as error:
            raise line.breaks(f"the tests pass {error}") from None
        answer = line.ask({"call": name, "args": packed})
        try:
            reader = plain.Reader(table)
            for number, node in answer["changed"]:
                reader.update(number, node)
            value = reader.value(answer["value"])
            raised = answer["raised"]
        except (plain.NotPlainError, KeyError, TypeError, ValueError) as error:
            raise line.breaks(f"answers with what cannot be read: {error}") from None
        if raised is not None:
            raise _error(raised, value)
        return value

    ask.__name__ = ask.__qualname__ = name
    return ask


def _error(name: Any, args: Any) -> Exception:
    kind = getattr(builtins, name, None) if type(name) is str else None
    usual = isinstance(kind, type) and issubclass(kind, Exception) and name not in NOT_RAISED_HERE
    if not usual or type(args) is not tuple:
        return RuntimeError(f"{name}: {args}")
    try:
        return kind(*args)  # type: ignore[misc,no-any-return]
    except Exception:
        return RuntimeError(f"{name}: {args}")


def without_declarations(tree: ast.Module) -> ast.Module:
    """The tests without functions that are a docstring, perhaps after imports, and nothing else.

    These stand for what the program defines. So a problem's text, as HumanEval gives it, can be
    part of the tests: its helpers are the judge's own then, whatever the program makes of them.
    """
    kept = [node for node in tree.body if not _declares(node)]
    return ast.Module(kept, tree.type_ignores)


def _declares(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    *before, last = node.body
    told = isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    return told and all(isinstance(line, ast.Import | ast.ImportFrom) for line in before)


def names_used(tree: ast.AST) -> list[str]:
    """Names that tests may take from the program: none of Python's own."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return sorted(used - set(dir(builtins)))


def _namespace(line: Line, names: list[str]) -> dict[str, Any]:
    """What the tests start with: the names that the program defines."""
    answer = line.ask(names)
    if "failed" in answer:
        raise line.breaks(str(answer["failed"])[:LONGEST_ERROR])
    space: dict[str, Any] = {"__name__": "__main__"}
    for name, kind in dict(answer["defined"]).items():
        if name not in names:
            continue
        if "call" in kind:
            space[name] = call(line, name)
        elif "data" in kind:
            space[name] = plain.Reader([]).value(kind["data"])
        elif kind.get("module") in sys.stdlib_module_names:
            space[name] = importlib.import_module(kind["module"])
    return space


def verdict(tests: str, questions: int, answers: int, ready: Callable[[], None]) -> str:
    """Run the tests; "" where they pass, else why not.

    Args:
        tests: their source.
        questions, answers: descriptors of the pipes to and from the candidate.
        ready: called before the candidate is asked anything.
    """
    line = Line(questions, answers)
    random.seed()  # both processes come from one: the candidate must not know what is drawn here
    try:
        tree = without_declarations(ast.parse(tests, "tests.py"))
        code = compile(tree, "tests.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        ready()
        return f"the tests themselves: {describe(error)}"
    ready()
    try:
        exec(code, _namespace(line, names_used(tree)))
    except SystemExit:
        return line.broken or "exits before its end"
    except BrokenError:
        return line.broken
    except BaseException as error:
        return line.broken or describe(error)
    return line.broken


def run(tests: str, questions: int, answers: int, report: int) -> None:
    """Report the verdict as JSON on a descriptor, after the sign that the tests are ready."""
    error = verdict(tests, questions, answers, lambda: send_all(report, READY))
    send_all(report, json.dumps({"passed": not error, "error": error}).encode())
