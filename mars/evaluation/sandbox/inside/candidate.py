"""The process that runs a program: it defines what it defines, then answers the judge's calls.

Nothing here is trusted: the program may replace any of it, and can only spoil its own answers.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

from . import plain
from .messages import receive, send

LONGEST_ERROR = 300


def run(source: str, questions: int, answers: int) -> None:
    """Define the program, then answer calls until the judge is gone.

    Args:
        source: the program.
        questions, answers: descriptors of the pipes from and to the judge.
    """
    module = ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        send(answers, plain.dumps({"failed": "exits before its end"}))
        return
    except BaseException as error:
        send(answers, plain.dumps({"failed": describe(error)}))
        return
    names = plain.loads(receive(questions, plain.LIMIT_BYTES))
    send(answers, plain.dumps({"defined": {n: _kind(module, n) for n in names if _has(module, n)}}))
    while True:
        question = plain.loads(receive(questions, plain.LIMIT_BYTES))
        send(answers, _answer(module, question))


def describe(error: BaseException) -> str:
    """An error in one line."""
    try:
        return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    except BaseException:
        return "raises an error that cannot be shown"


def _has(module: ModuleType, name: str) -> bool:
    return name in module.__dict__


def _kind(module: ModuleType, name: str) -> dict[str, Any]:
    """What a name stands for: a module, something to call, data, or none of these."""
    value = module.__dict__[name]
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if callable(value):
        return {"call": name}
    try:
        return {"data": plain.Writer([]).node(value)}
    except plain.NotPlainError as error:
        return {"neither": str(error)}


def _answer(module: ModuleType, question: dict[str, Any]) -> bytes:
    table: list[Any] = []
    args, kwargs = plain.Reader(table).value(question["args"])
    before = plain.snapshot(table)
    try:
        value = module.__dict__[question["call"]](*args, **kwargs)
        return _reply(table, before, value, None)
    except plain.NotPlainError as error:
        return plain.dumps({"refused": str(error)})
    except BaseException as error:
        return _raised(table, before, error)


def _reply(table: list[Any], before: list[Any], value: Any, raised: str | None) -> bytes:
    writer = plain.Writer(list(table))
    changed = [(number, writer.content(table[number])) for number in plain.changed(table, before)]
    return plain.dumps({"changed": changed, "value": writer.node(value), "raised": raised})


def _raised(table: list[Any], before: list[Any], error: BaseException) -> bytes:
    """An error travels as the name of its nearest builtin type, and its arguments."""
    kinds = (k for k in type(error).__mro__ if getattr(builtins, k.__name__, None) is k)
    name = next(kinds, BaseException).__name__
    for args in (error.args, (describe(error),)):
        try:
            return _reply(table, before, args, name)
        except Exception:
            continue
    return plain.dumps({"changed": [], "value": ["tuple", []], "raised": name})
