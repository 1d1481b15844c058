"""Which source files a rule depends on: those its entry module imports, ours only, found by ast.

Registries import every objective, decoder, table and figure, so they are not followed: a rule
names the one file that it uses. Settings reach a rule as parameters, so `mars/config` is not
followed either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

NOT_FOLLOWED = {
    "mars/__init__.py",
    *(f"mars/config/{name}.py" for name in ("__init__", "files", "sections", "speed", "study")),
    "mars/jobs.py",
    "mars/analysis/figures/__init__.py",
    "mars/analysis/tables/__init__.py",
    "mars/decoding/__init__.py",
    "mars/training/objectives/__init__.py",
}


def sources(root: Path, *entries: str) -> list[str]:
    """Paths, relative to the root, of the entry files and of all that they import of ours."""
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        path = waiting.pop()
        if path not in found and path not in NOT_FOLLOWED:
            found.add(path)
            waiting += imported(root, path)
    return sorted(found)


@cache
def imported(root: Path, path: str) -> tuple[str, ...]:
    """Paths of our modules that one file imports, wherever in the file it does so."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"), filename=path)
    return tuple(dict.fromkeys(file for name in _names(tree) for file in _files(root, name)))


@cache
def registry(root: Path, path: str, name: str) -> dict[str, str]:
    """What a registry names, and the file of each, read from ``name = {"key": module.attribute}``.

    Reading it so, without importing it, keeps torch and matplotlib out of the workflow's own start.
    """
    tree = ast.parse((root / path).read_text(encoding="utf-8"), filename=path)
    origins = {
        alias.asname or alias.name: list(_files(root, f"{node.module}.{alias.name}"))[-1:]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return {
                    str(ast.literal_eval(key)): _origin(value, origins)
                    for key, value in zip(node.value.keys, node.value.values, strict=True)
                    if key is not None
                }
    raise LookupError(f"{path} has no dictionary {name}")


def _origin(value: ast.expr, origins: dict[str, list[str]]) -> str:
    while isinstance(value, ast.Attribute):
        value = value.value
    if not isinstance(value, ast.Name) or not origins.get(value.id):
        raise LookupError(f"{ast.unparse(value)} is not imported from a module of ours")
    return origins[value.id][0]


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(root: Path, name: str) -> Iterator[str]:
    """The module's file, and those of the packages it lies in; nothing for what is not ours."""
    parts = name.split(".")
    if parts[0] != "mars":
        return
    for length in range(1, len(parts) + 1):
        stem = "/".join(parts[:length])
        for path in (f"{stem}/__init__.py", f"{stem}.py"):
            if (root / path).is_file():
                yield path


def data_files(root: Path, folder: str) -> list[str]:
    """Paths, relative to the root, of the files below a folder that are no Python and no cache."""
    files = (path for path in (root / folder).rglob("*") if path.is_file())
    return sorted(
        str(path.relative_to(root))
        for path in files
        if path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
    )
