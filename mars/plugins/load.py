"""Import a study's plug-ins, hold their classes to the contract, and register them."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from mars.config import Study
from mars.decoding import DECODERS
from mars.decoding.base import BoundDecoder
from mars.plugins.files import TABLES, Plugin, PluginError, find_plugins, resolve_plugins
from mars.streams import Predicate
from mars.training.objectives import REGISTRY, Objective

REGISTRIES: dict[str, dict[str, Any]] = {"objective": REGISTRY, "decoder": DECODERS}
BASES: dict[str, type] = {"objective": Objective, "decoder": BoundDecoder}


def load_plugins(study: Study, source: str) -> list[Plugin]:
    """Register the objectives and decoders of a study's plug-ins.

    Args:
        study: the study.
        source: its file, for messages; relative paths are looked for beside it too.

    Raises:
        PluginError: one line, and the plug-in's own traceback where it raised.
    """
    study = resolve_plugins(study, [Path(source).parent], source)
    plugins = find_plugins(study, source)
    for plugin in plugins:
        module = _import(plugin, source)
        for kind, names in plugin.names.items():
            table = getattr(module, TABLES[kind], {})
            for name in names:
                where = f"{source}: plugins: {plugin}: {kind} {name!r}"
                check_class(table.get(name), kind, where)
                REGISTRIES[kind][name] = table[name]
    return plugins


def _import(plugin: Plugin, source: str) -> ModuleType:
    path = plugin.path.resolve()
    with own_errors(path, f"{source}: plugins: {plugin}", "cannot be imported"):
        if plugin.module:
            return import_module(plugin.module)
        name = f"mars_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


@contextmanager
def own_errors(path: Path, where: str, problem: str) -> Iterator[None]:
    """Turn what a plug-in raises into a PluginError with its own traceback.

    Args:
        path: the plug-in's file; the traceback starts in it.
        where, problem: of the one line.
    """
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        mine = [i for i, frame in enumerate(frames) if Path(frame.filename).resolve() == path]
        told = ["Traceback (most recent call last):\n"]
        told += traceback.format_list(frames[mine[0] if mine else 0 :])
        told += traceback.format_exception_only(error)
        said = " ".join(str(error).split()) or "no message"
        line = f"{where}: {problem}: {type(error).__name__}: {said}"
        raise PluginError(line, "".join(told)) from None


def check_class(made: Any, kind: str, where: str) -> None:
    """Raise PluginError, naming the method and its signature, for what misses the contract."""
    base = BASES[kind]
    named = f"{base.__module__}.{base.__qualname__}"
    if not (isinstance(made, type) and issubclass(made, base)):
        raise PluginError(f"{where}: {made!r} is no subclass of {named}; derive it from that")
    lacking = sorted(made.__abstractmethods__)  # type: ignore[attr-defined]
    if lacking:
        methods = ", ".join(_signature(_inherited(made, name), name) for name in lacking)
        raise PluginError(f"{where}: {made.__name__} lacks {methods}; see {named}")
    if kind == "objective" and not isinstance(getattr(made, "predicate", None), Predicate):
        raise PluginError(
            f"{where}: {made.__name__} lacks predicate, a mars.streams.Predicate: who sees whom"
        )
    for name, method in inspect.getmembers(base, inspect.isfunction):
        mine = getattr(made, name)
        if name == "__init__" or mine is method or not callable(mine):
            continue
        if not _takes(mine, method):
            wanted, has = _signature(method, name), _signature(mine, name)
            raise PluginError(f"{where}: {made.__name__}.{has} must take what {wanted} does")


def _inherited(made: type, name: str) -> Any:
    return inspect.getattr_static(made, name)


def _signature(method: Any, name: str) -> str:
    return f"{name}{inspect.signature(method)}"


def _takes(mine: Any, theirs: Any) -> bool:
    """Whether ``mine`` can be called as ``theirs`` is."""
    parameters = inspect.signature(theirs).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(mine).bind(*positional, **named)
    except TypeError:
        return False
    return True
