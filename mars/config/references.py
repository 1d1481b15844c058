"""How a study names models that it does not make: folders, embedded ones, the hub's."""

from __future__ import annotations

import re
from pathlib import Path

_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


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

    It is ``datasets/<owner>/<name>``, or ``<name>``, as the benchmarks' own are.
    """
    named = hub_reference(source)
    if named is None or data_root is None or Path(source).exists():
        return None
    folders = Path(data_root, "datasets", named[0]), Path(data_root, named[0].split("/")[1])
    return next((str(folder) for folder in folders if folder.is_dir()), None)
