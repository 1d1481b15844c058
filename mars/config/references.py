"""How a study names models that it does not make: folders, embedded ones, the hub's."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

BENCHMARK_FOLDERS = {
    "google/IFEval": "ifeval",
    "SaylorTwift/bbh": "bbh",
    "TIGER-Lab/MMLU-Pro": "mmlu_pro",
    "Idavidrein/gpqa": "gpqa",
    "openai/gsm8k": "gsm8k",
    "openai/openai_humaneval": "humaneval",
}
"""Hub name of a benchmark's dataset → its folder below ``data_root``."""

_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


OFFLINE = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
    "evaluate.config": ("HF_EVALUATE_OFFLINE",),
}
"""Modules of the hub's libraries, and the switches that each reads once, when imported."""


def work_offline() -> None:
    """From now on this process, and those it starts, ask the hub nothing."""
    for module, switches in OFFLINE.items():
        os.environ |= dict.fromkeys(switches, "1")
        if imported := sys.modules.get(module):
            vars(imported).update(dict.fromkeys(switches, True))


def hub_reference(ref: str) -> tuple[str, str | None] | None:
    """(``owner/name``, revision or None) of a hub model; None: the reference is a folder's."""
    found = _HUB.fullmatch(ref.removeprefix("hub:"))
    return (found[1], found[2]) if found else None


def located(ref: str, data_root: str | None, revision: str | None = None) -> str:
    """Where a model is looked for: a hub model's folder below ``data_root``, where it is there.

    Args:
        ref: ``embedded:<name>``, a folder, or a hub model.
        data_root: holds hub models in ``models/<owner>/<name>``; None: there is none.
        revision: of a hub model.

    Returns:
        The reference itself, with its revision, where no folder is known.
    """
    named = None if Path(ref).is_dir() else hub_reference(ref)
    if named is None:
        return ref
    name, own = named
    if data_root is not None and (folder := Path(data_root, "models", name)).is_dir():
        return str(folder)
    revision = own or revision
    return f"{name}@{revision}" if revision else name


def located_dataset(source: str, data_root: str | None) -> str | None:
    """The folder of a hub dataset below ``data_root``; None: not there.

    It is ``datasets/<owner>/<name>``; those of the benchmarks have folders of their own.
    """
    named = hub_reference(source)
    if named is None or data_root is None or Path(source).exists():
        return None
    folders = [f"datasets/{named[0]}", *filter(None, [BENCHMARK_FOLDERS.get(named[0])])]
    found = (Path(data_root, folder) for folder in folders)
    return next((str(folder) for folder in found if folder.is_dir()), None)
