"""The short way to try a checkpoint: ``mars.generate`` and ``mars.stream``.

>>> import mars
>>> print(mars.generate("embedded:toy-s", "How many …?", tau=1).text)
"""

from __future__ import annotations

from mars.decoding.generate.api import generate, prepare, stream
from mars.decoding.generate.options import Options, Prompts
from mars.decoding.generate.run import Answer, Piece, Run

__all__ = ["Answer", "Options", "Piece", "Prompts", "Run", "generate", "prepare", "stream"]
