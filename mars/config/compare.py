"""A variant of your own, held against variants of a study: one small YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from mars.config.files import parse, parse_study, read_yaml
from mars.config.sections import Name, Section, Variant
from mars.config.study import ConfigError, Study, known

BASELINES = ("ar_sft", "mars_b4")


class Comparison(Section):
    """A variant, and what it is held against."""

    name: Name = Field(description="of the variant and of its report; default: the file's name")
    variant: Variant | None = Field(None, description="its settings; null: the study has it")
    plugins: list[str] = Field(default_factory=list, description="as in a study, for it alone")
    baselines: list[Name] = Field(list(BASELINES), min_length=1, description="the study's variants")
    margin: float = Field(
        2.0, ge=0, description="points of the mean score; a loss below it counts as not worse"
    )


def load_comparison(path: str | Path) -> Comparison:
    """Read and check a variant's file.

    Raises:
        ConfigError: one line naming the file, the key and the remedy.
    """
    path = Path(path)
    raw = read_yaml(path, "YAML files there")
    if isinstance(raw, dict) and "study" in raw:
        raise ConfigError(
            f"{path}: this is a whole study (it has the key study); a variant's file has name, "
            "variant, plugins, baselines and margin"
        )
    if isinstance(raw, dict):
        raw = {"name": path.stem} | raw
    return parse(Comparison, raw, str(path))


def with_variant(study: Study, made: Comparison, source: str) -> Study:
    """The study and the variant that is compared; nothing else of it changes.

    Args:
        study: the study.
        made: the variant and its baselines.
        source: the variant's file, for messages.

    Raises:
        ConfigError: the study has another variant of that name, or lacks a baseline.
    """
    if made.variant is None:
        _check(made.name in study.variants, source, "variant is missing: give its settings")
        joined = study
    else:
        same = study.variants.get(made.name, made.variant) == made.variant
        hint = f"the study has another variant {made.name!r}; choose another name"
        _check(same, source, f"name: {hint}")
        raw = study.model_dump(mode="json")
        raw["variants"][made.name] = made.variant.model_dump(mode="json")
        raw["plugins"] = list(dict.fromkeys([*raw["plugins"], *made.plugins]))
        joined = parse_study(raw, source)
    for number, name in enumerate(made.baselines):
        try:
            known(name, dict.fromkeys(study.variants), f"baselines.{number}")
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from None
        _check(name != made.name, source, f"baselines.{number}: {name!r} is the variant itself")
    for scale in joined.scales_of(made.name):
        there = any(scale in joined.scales_of(name) for name in made.baselines)
        _check(
            there,
            source,
            f"baselines: none is made at {scale!r}; add one, or set variant.scales",
        )
    return joined


def compared_runs(study: Study, variant: str, baselines: Sequence[str]) -> list[tuple[str, str]]:
    """(scale, variant) of the runs that are compared: at the scales of the variant.

    Raises:
        ConfigError: the study lacks one of them.
    """
    try:
        known(variant, study.variants, "--variant")
        for name in baselines:
            known(name, study.variants, "--baselines")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [
        (scale, name)
        for scale in study.scales_of(variant)
        for name in (variant, *baselines)
        if scale in study.scales_of(name)
    ]


def _check(good: Any, source: str, problem: str) -> None:
    if not good:
        raise ConfigError(f"{source}: {problem}")
