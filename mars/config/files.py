"""Study files: read, checked, written; every error is one line with the key and a remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from mars.config.sections import Section
from mars.config.study import ConfigError, Study

Kind = TypeVar("Kind", bound=Section)


def parse_study(raw: Any, source: str = "configuration") -> Study:
    """Check a mapping read from ``source`` (a file name, for messages) and return the study.

    Raises:
        ConfigError: one line naming the file, the key and the remedy.
    """
    return parse(Study, raw, source)


def parse(kind: type[Kind], raw: Any, source: str) -> Kind:
    """A section of one kind, from a mapping read from ``source``. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, got {type(raw).__name__}")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error, kind)}") from None


def load_study(path: str | Path, changes: Sequence[str] = ()) -> Study:
    """Read and check a study file. Raises ConfigError as ``parse_study`` does.

    Args:
        path: the file.
        changes: ``key=value``, in YAML, as ``snakemake --config`` has them: maps are merged.
    """
    raw = read_yaml(Path(path), "study files")
    for change in changes:
        key, sign, value = change.partition("=")
        try:
            if not sign:
                raise ConfigError(f"{change}: give KEY=VALUE, such as checkpoints=released")
            raw = _merged(raw, {key: yaml.safe_load(value)})
        except yaml.YAMLError as error:
            raise ConfigError(f"{change}: is no YAML: {' '.join(str(error).split())}") from None
    return parse_study(raw, " + ".join([str(path), *changes]))


def _merged(old: Any, new: Any) -> Any:
    """A setting with another put over it; of maps, what the other does not name stays."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def read_yaml(path: Path, what: str) -> Any:
    """What a YAML file holds; ``what`` names such files in messages. Raises ConfigError."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        places = [place for place in (path.parent, Path("config")) if any(place.glob("*.yaml"))]
        near = ", ".join(sorted(str(p) for p in places[0].glob("*.yaml"))) if places else "none"
        raise ConfigError(f"{path}: no such file; {what}: {near}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def dump_study(study: Study) -> str:
    """The study as YAML with every default written out."""
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def json_schema() -> str:
    """The JSON schema of a study file, as text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(schema | Study.model_json_schema(), indent=2, sort_keys=True) + "\n"


def _explain(error: ValidationError, kind: type[Section]) -> str:
    """The first problem of a validation, as one line with its key and a remedy."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(kind, problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(fields)}"
        return f"{key}: unknown key; {hint}{more}"
    if problem["type"] == "missing":
        return f"{key}: missing; add it{more}"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ") + more
    return f"{key}: {problem['msg']}, got {problem['input']!r}{more}"


def _fields_at(kind: type[Section], loc: tuple[int | str, ...]) -> list[str]:
    """Names of the settings of the section at a location, found by walking the JSON schema."""
    schema = kind.model_json_schema()
    node: dict[str, Any] = schema
    for part in loc:
        choices = [node, *node.get("anyOf", [])]
        for choice in choices:
            if "$ref" in choice:
                choice = schema["$defs"][choice["$ref"].rsplit("/", 1)[1]]
            if str(part) in choice.get("properties", {}):
                node = choice["properties"][str(part)]
                break
            inner = choice.get("additionalProperties") or next(
                iter(choice.get("patternProperties", {}).values()), None
            )
            if isinstance(inner, dict):
                node = inner
                break
        for choice in [node, *node.get("anyOf", [])]:
            if "$ref" in choice:
                node = schema["$defs"][choice["$ref"].rsplit("/", 1)[1]]
                break
    return list(node.get("properties", {}))
