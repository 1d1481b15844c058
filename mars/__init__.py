"""MARS reproduced: multi-token generation by mask fine-tuning.

>>> import mars
>>> print(mars.generate("results/embedded/seed0/toy-m/mars_b4/model", "…", tau=0.95).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mars.decoding.generate import Answer, Options, generate, stream

__version__ = "0.1.0"
__all__ = ["Answer", "Options", "generate", "stream"]


def __getattr__(name: str) -> object:
    """What is named above, imported when first used: it brings torch, which takes seconds."""
    if name in __all__:
        from mars.decoding import generate as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
