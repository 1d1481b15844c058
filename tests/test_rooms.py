"""Rooms import only what docs/architecture.md lets them: arrows only go up its list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "streams": {"config"},
    "models": {"config"},
    "jobs": set(),
    "measurement": set(),
    "embedded": {"config"},
    "data": {"config", "streams", "embedded"},
    "training": {"config", "streams", "models", "data", "measurement"},
    "decoding": {"config", "streams", "models", "measurement"},
    "evaluation": {"config", "decoding", "models", "embedded", "measurement"},
    "analysis": {"config"},
    "planning": {"config"},
    "plugins": {"config", "streams", "data", "training", "decoding"},
}
# The toy bases are made from the toy world's own corpus, with its own tokenizer.
ALSO = {"mars/training/pretrain.py": {"embedded"}}
ANYTHING = {"cli", "__main__", "__init__"}


def room(path: Path) -> str:
    return path.relative_to(ROOT / "mars").parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Rooms that a file imports, wherever in the file it does so."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [module] if module.count(".") else []
            if module == "mars":
                names = [f"mars.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("mars."):
                yield name.split(".")[1]


FILES = sorted((ROOT / "mars").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    here = room(path)
    if here in ANYTHING:
        return
    assert here in MAY_IMPORT, f"{here} is not in docs/architecture.md"
    name = str(path.relative_to(ROOT))
    beyond = set(imports(path)) - MAY_IMPORT[here] - ALSO.get(name, set()) - {here}
    assert not beyond, f"{name} may not import {', '.join(sorted(beyond))}"


def test_training_and_decoding_never_import_each_other():
    assert "decoding" not in MAY_IMPORT["training"]
    assert "training" not in MAY_IMPORT["decoding"]


def test_every_room_is_listed():
    rooms = {room(path) for path in FILES} - ANYTHING
    assert rooms == set(MAY_IMPORT)
