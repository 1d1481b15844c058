"""Tidy results, statistics, claims, tables, figures and the report of a study; the paper's numbers.

>>> from mars.analysis import load
>>> load("embedded").groupby(["scale", "variant", "tau"], observed=True)["score"].mean()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mars.analysis.generations import load_generations, load_steps, load_tokens
    from mars.analysis.tidy import load, load_throughput

__all__ = ["load", "load_generations", "load_steps", "load_throughput", "load_tokens"]

_IN = {"load": "tidy", "load_throughput": "tidy"}


def __getattr__(name: str) -> object:
    """What is named above, imported when first used: the workflow reads parts of this room."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"mars.analysis.{_IN.get(name, 'generations')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
