"""A study, and what its sections must agree on."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mars.config.sections import (
    ALIGNMENTS,
    Data,
    DecoderName,
    Decoding,
    Evaluation,
    Name,
    Rule,
    Scale,
    Section,
    Training,
    Variant,
)
from mars.config.speed import Throughput, TrainingCost


class ConfigError(ValueError):
    """A study configuration that cannot be run; the message is one line for the user."""


class Study(Section):
    """One study: scales, variants, benchmarks, thresholds, wall-clock grid."""

    study: Name
    seeds: list[Annotated[int, Field(ge=0)]] = [0]
    data_root: str | None = Field(
        None,
        description="folder in which models, datasets and graders' files are found instead of on "
        "the hub (`mars fetch` fills it)",
    )
    plugins: list[str] = Field(
        default_factory=list, description="Python files with objectives or decoders of your own"
    )
    checkpoints: Literal["trained", "released"] = Field(
        "trained", description="released: evaluate the released checkpoints, and train nothing"
    )
    scales: dict[Name, Scale]
    data: Data = Data()
    training: Training = Training()
    variants: dict[Name, Variant]
    evaluation: Evaluation
    throughput: Throughput | None = None
    training_cost: TrainingCost | None = None

    @model_validator(mode="after")
    def _references(self) -> Study:
        for name, variant in self.variants.items():
            key = f"variants.{name}"
            if variant.objective is None:
                if name != "base":
                    raise ValueError(f"{key}.objective is missing: name an objective")
                continue
            if variant.parent is None or not variant.stages:
                raise ValueError(f"{key} needs a parent and at least one stage")
            _known(variant.parent, self.variants, f"{key}.parent")
            for scale in variant.scales or []:
                _known(scale, self.scales, f"{key}.scales")
                if scale not in self.scales_of(variant.parent):
                    raise ValueError(f"{key}.parent {variant.parent!r} is not made at {scale!r}")
            if variant.objective in ("mars", "block_diffusion") and variant.block_size < 2:
                raise ValueError(
                    f"{key}.block_size is {variant.block_size}: {variant.objective} needs at "
                    "least 2 (one token a step is tau = 1)"
                )
            if variant.alignment not in ALIGNMENTS.get(variant.objective, (variant.alignment,)):
                known = " or ".join(ALIGNMENTS[variant.objective])
                raise ValueError(
                    f"{key}.alignment is {variant.alignment!r}: {variant.objective} knows {known}"
                )
            self._lineage(name)
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds} has one twice; leave it out")
        if not self.seeds or not self.scales or not self.evaluation.benchmarks:
            raise ValueError("seeds, scales and evaluation.benchmarks need at least one entry")
        for name in self.evaluation.panels:
            _known(name, self.evaluation.benchmarks, "evaluation.panels")
        if rules := self.evaluation.acceptance:
            _known(rules.variant, self.variants, "evaluation.acceptance.variant")
            _known(rules.benchmark, self.evaluation.benchmarks, "evaluation.acceptance.benchmark")
            self._decodes(rules.variant, "mars", "evaluation.acceptance.variant")
        if jacobi := self.evaluation.jacobi:
            _known(jacobi.variant, self.variants, "evaluation.jacobi.variant")
            self._decodes(jacobi.variant, "ar", "evaluation.jacobi.variant")
        if grid := self.throughput:
            _known(grid.scale, self.scales, "throughput.scale")
            _known(grid.benchmark, self.evaluation.benchmarks, "throughput.benchmark")
            for key, name in (("variant", grid.variant), ("ar_variant", grid.ar_variant)):
                _known(name, self.variants, f"throughput.{key}")
                if grid.scale not in self.scales_of(name):
                    raise ValueError(f"throughput.{key} {name!r} is not made at {grid.scale!r}")
            self._measures(grid)
        if cost := self.training_cost:
            self._costs(cost)
        return self

    def _measures(self, grid: Throughput) -> None:
        self._decodes(grid.ar_variant, "ar", "throughput.ar_variant")
        if grid.thresholds or grid.trace:
            self._decodes(grid.variant, "mars", "throughput.variant")
        elif grid.replay is None:
            raise ValueError("throughput.thresholds is empty: give one, or a replay section")
        if grid.continuous and grid.replay is None:
            raise ValueError("throughput.continuous replays acceptance: add a replay section")
        size = grid.block_size or self.variants[grid.variant].block_size
        if size < 2:
            raise ValueError(
                f"throughput.block_size: {grid.variant!r} drafts nothing: set it to at least 2"
            )
        if grid.replay and grid.replay.tokens_per_forward > size:
            raise ValueError(
                f"throughput.replay.tokens_per_forward is {grid.replay.tokens_per_forward:g}: "
                f"with block_size {size} it is at most {size}"
            )

    def _costs(self, cost: TrainingCost) -> None:
        _known(cost.scale, self.scales, "training_cost.scale")
        asked = [("ar_variant", cost.ar_variant, "ar_sft")]
        asked += [("variants", name, "mars") for name in cost.variants]
        asked += [("released", cost.released, "mars")] if cost.released else []
        for field, name, objective in asked:
            key = f"training_cost.{field}"
            _known(name, self.variants, key)
            if cost.scale not in self.scales_of(name):
                raise ValueError(f"{key} {name!r} is not made at {cost.scale!r}")
            mine = self.variants[name].objective
            if mine != objective and (mine is None or mine in ALIGNMENTS):
                names = ", ".join(v for v, m in self.variants.items() if m.objective == objective)
                raise ValueError(
                    f"{key}: {name!r} is not trained by {objective}; choose from {names}"
                )

    def _decodes(self, variant: str, decoder: DecoderName, key: str) -> None:
        made = self.variants[variant]
        known = made.objective is None or made.objective in ALIGNMENTS
        if known and made.decoder != decoder:  # an unknown objective is reported as such
            names = ", ".join(v for v, made in self.variants.items() if made.decoder == decoder)
            raise ValueError(f"{key}: {variant!r} is not read by {decoder}; choose from {names}")

    def _lineage(self, name: str) -> None:
        seen: list[str] = []
        at: str | None = name
        while at is not None:
            if at in seen:
                raise ValueError(f"variants.{name}.parent: a circle, {' → '.join([*seen, at])}")
            seen.append(at)
            at = self.variants[at].parent if at in self.variants else None

    def scales_of(self, variant: str) -> list[str]:
        """The scales at which a variant is made, in the study's order."""
        only = self.variants[variant].scales
        return [s for s in self.scales if only is None or s in only]

    def runs(self) -> Iterator[tuple[str, str]]:
        """Every (scale, variant) of the study, the base included."""
        for variant in self.variants:
            for scale in self.scales_of(variant):
                yield scale, variant

    def check_run(self, seed: int, scale: str, variant: str, source: str) -> None:
        """Raise ConfigError, naming the file ``source``, if the study has no such run."""
        try:
            if seed not in self.seeds:
                raise ValueError(f"seeds: {seed} is not one of {self.seeds}; add it, or use one")
            _known(scale, self.scales, "scales")
            _known(variant, self.variants, "variants")
            _known(scale, dict.fromkeys(self.scales_of(variant)), f"variants.{variant}.scales")
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from None

    def decodings(self, variant: str, benchmark: str) -> list[Decoding]:
        """The decoding settings that evaluation runs for a variant on a benchmark."""
        made = self.variants[variant]
        ev = self.evaluation
        size = made.block_size if made.decoder != "ar" else 1
        diffusion = made.decoder == "block_diffusion"
        alignment = made.alignment if diffusion and made.alignment != "decoder" else None

        def at(tau: float, rule: Rule = "probability") -> Decoding:
            return Decoding(
                decoder=made.decoder,
                block_size=size,
                tau=tau,
                rule=rule,
                cache="cursor",
                alignment=alignment,
            )

        if made.decoder != "mars":
            found = [at(1.0)]
        else:
            taus = list(ev.thresholds)
            if ev.sweep == "full" or (ev.sweep == "panels" and benchmark in ev.panels):
                taus += ev.sweep_thresholds
            found = [at(tau) for tau in dict.fromkeys(taus)]
            if (r := ev.acceptance) and (r.variant, r.benchmark) == (variant, benchmark):
                found += [at(tau, rule) for rule in r.rules for tau in r.thresholds]
        if ev.jacobi and ev.jacobi.variant == variant:
            found.append(
                Decoding(decoder="jacobi", block_size=ev.jacobi.window, tau=1.0, cache="cursor")
            )
        return list(dict.fromkeys(found))


def _known(name: str, among: dict[str, Any], key: str) -> None:
    if name not in among:
        near = difflib.get_close_matches(name, among, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(among)}"
        raise ValueError(f"{key}: unknown {name!r}; {hint}")
