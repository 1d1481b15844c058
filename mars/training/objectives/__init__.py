"""Objectives: one file each, one line here.

An objective turns encoded examples into a batch, and a batch into sums of losses. To add one:
write its file, and name it below; or leave this project as it is and write a plug-in
(``mars.plugins``).
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from pathlib import Path

from mars.training.objectives.ar_sft import ArSft
from mars.training.objectives.base import Batch, Objective, Setup, Terms
from mars.training.objectives.block_diffusion import BlockDiffusion
from mars.training.objectives.mars import Mars

REGISTRY: dict[str, type[Objective]] = {
    "ar_sft": ArSft,
    "mars": Mars,
    "block_diffusion": BlockDiffusion,
}


def check_objective(name: str | None) -> type[Objective]:
    """The class of an objective. Raises ValueError naming the known ones."""
    if name in REGISTRY:
        return REGISTRY[str(name)]
    near = difflib.get_close_matches(str(name), REGISTRY, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(REGISTRY)}"
    raise ValueError(f"objective: unknown {name!r}; {hint}")


def outside_code(objective: type[Objective]) -> str | None:
    """A hash of the file of a plug-in's objective, whose models it shapes; None for our own."""
    if objective.__module__.startswith("mars."):
        return None
    return hashlib.sha256(Path(inspect.getfile(objective)).read_bytes()).hexdigest()[:16]


def make_objective(name: str, setup: Setup) -> Objective:
    """The objective of a training run. Raises ValueError where it cannot be set up so."""
    return check_objective(name)(setup)


__all__ = [
    "REGISTRY",
    "Batch",
    "Objective",
    "Setup",
    "Terms",
    "check_objective",
    "make_objective",
    "outside_code",
]
