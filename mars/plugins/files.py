"""Which plug-ins a study uses, and what each brings, without importing any of them."""

from __future__ import annotations

import ast
import difflib
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from mars.config import ALIGNMENTS, DECODERS, Study

GROUP = "mars.plugins"
"""The entry-point group of installed plug-ins; an entry point's value is a module."""

BUILT_IN: dict[str, tuple[str, ...]] = {"objective": tuple(ALIGNMENTS), "decoder": DECODERS}
TABLES = {"objective": "OBJECTIVES", "decoder": "DECODERS"}
"""What a plug-in may bring, and the table that it is named in."""


class PluginError(ValueError):
    """A plug-in that cannot be used.

    Args:
        line: one line for the user: where, what is wrong, what to do.
        own_traceback: the plug-in's own traceback, where it raised.
    """

    def __init__(self, line: str, own_traceback: str = "") -> None:
        super().__init__(line)
        self.own_traceback = own_traceback


@dataclass(frozen=True)
class Plugin:
    """A plug-in's file, and the names it brings of each kind (``objective``, ``decoder``).

    ``module`` is the dotted name of an installed one; None: a file of the study's.
    """

    path: Path
    module: str | None
    names: dict[str, tuple[str, ...]]

    def __str__(self) -> str:
        return self.module or str(self.path)


def resolve_plugins(study: Study, folders: Iterable[Path], source: str) -> Study:
    """The study with the path of each plug-in as it can be opened from here.

    Args:
        study: the study.
        folders: where a relative path is looked for, besides the current folder: the study file's.
        source: the study file, for messages.

    Raises:
        PluginError: a file is not there.
    """
    found = []
    for name in study.plugins:
        places = list(dict.fromkeys([Path(name), *(Path(f, name) for f in folders)]))
        place = next((place for place in places if place.is_file()), None)
        if place is None:
            tried = ", ".join(str(place) for place in places[1:])
            raise PluginError(
                f"{source}: plugins: {name}: no such file{', nor ' * bool(tried)}{tried}; paths "
                "start at the repository root, or at the study file's folder"
            )
        found.append(str(place))
    return study.model_copy(update={"plugins": found})


def find_plugins(study: Study, source: str) -> list[Plugin]:
    """The plug-ins that a study lists, and those installed ones that its variants name.

    Args:
        study: the study, its plug-ins' paths resolved.
        source: its file, for messages.

    Raises:
        PluginError: a file cannot be read, a name is taken, or nobody has a name that is used.
    """
    listed = [_read(Path(path), None, f"{source}: plugins") for path in study.plugins]
    wanted = [
        (f"variants.{name}.{kind}", kind, str(getattr(variant, kind)))
        for name, variant in study.variants.items()
        for kind in TABLES
        if getattr(variant, kind) is not None
    ]
    brought = _owners(listed, source)
    others = [
        want for want in wanted if want[1:] not in brought and want[2] not in BUILT_IN[want[1]]
    ]
    if others:
        installed = [
            p for p in _installed() if any(name in p.names[kind] for _, kind, name in others)
        ]
        brought = _owners([*listed, *installed], source)
        listed += installed
    for key, kind, name in others:
        if (kind, name) not in brought:
            known = [*BUILT_IN[kind], *(other for k, other in brought if k == kind)]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            raise PluginError(f"{source}: {key}: unknown {name!r}; {hint}")
    return listed


def _owners(plugins: Sequence[Plugin], source: str) -> dict[tuple[str, str], Plugin]:
    """(kind, name) → the plug-in that brings it; no name is anybody else's."""
    owners: dict[tuple[str, str], Plugin] = {}
    for plugin in plugins:
        for kind, names in plugin.names.items():
            for name in names:
                owner = owners.get((kind, name))
                if name in BUILT_IN[kind] or owner is not None:
                    taken = f"is {owner}'s too" if owner else "is built in"
                    raise PluginError(
                        f"{source}: plugins: {plugin}: {kind} {name!r} {taken}; choose another name"
                    )
                owners[kind, name] = plugin
    return owners


def _installed() -> list[Plugin]:
    """The plug-ins of installed packages; their packages are imported, they themselves are not."""
    found = []
    for entry in entry_points(group=GROUP):
        where = f"entry point {entry.name!r} of {GROUP}"
        try:
            spec = find_spec(entry.module)
        except ImportError:
            spec = None
        if spec is None or spec.origin is None:
            raise PluginError(
                f"{where}: no module {entry.module!r}; install its package again, or remove it"
            )
        found.append(_read(Path(spec.origin), entry.module, where))
    return found


def _read(path: Path, module: str | None, where: str) -> Plugin:
    """What a plug-in's file brings, read from its tables."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except SyntaxError as error:
        told = "".join(traceback.format_exception_only(error))
        line = f"{where}: {path}: line {error.lineno}: {error.msg}; put its syntax right"
        raise PluginError(line, told) from None
    except (OSError, ValueError) as error:
        raise PluginError(f"{where}: {path}: cannot be read: {error}; check the path") from None
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    names = {kind: _keys(tables.get(table), table, path, where) for kind, table in TABLES.items()}
    if not any(names.values()):
        raise PluginError(
            f'{where}: {path}: names nothing: add OBJECTIVES = {{"name": Class}} or '
            'DECODERS = {"name": Class} at its top level'
        )
    return Plugin(path, module, names)


def _keys(value: ast.expr | None, table: str, path: Path, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    keys = value.keys if isinstance(value, ast.Dict) else [None]
    names = tuple(k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str))
    if len(names) < len(keys):
        raise PluginError(
            f"{where}: {path}: line {value.lineno}: {table} must be written out, as "
            f'{table} = {{"name": Class}}'
        )
    return names
