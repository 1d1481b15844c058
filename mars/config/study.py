"""A study, and what its sections must agree on."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mars.config.references import hub_reference, located, located_dataset
from mars.config.sections import (
    ALIGNMENTS,
    UNTHRESHOLDED,
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

    @model_validator(mode="before")
    @classmethod
    def _released_cost_no_training(cls, given: Any) -> Any:
        """Where nothing is trained, neither is what a training step costs measured."""
        if isinstance(given, dict) and given.get("checkpoints") == "released":
            return given | {"training_cost": None}
        return given

    @model_validator(mode="before")
    @classmethod
    def _data_below_the_root(cls, given: Any) -> Any:
        """``~`` is the home folder; a hub dataset that lies below data_root is read there."""
        if not isinstance(given, dict):
            return given
        if isinstance(root := given.get("data_root"), str):
            given = given | {"data_root": os.path.expanduser(root)}
        if isinstance(data := given.get("data"), dict):
            found = located_dataset(str(data.get("source")), given.get("data_root"))
            if found is not None:
                return given | {"data": data | {"source": found, "revision": None}}
        return given

    @model_validator(mode="after")
    def _references(self) -> Study:
        self._sources()
        for name, variant in self.variants.items():
            key = f"variants.{name}"
            if variant.thresholds and variant.decoder in UNTHRESHOLDED:
                raise ValueError(
                    f"{key}.thresholds: {variant.decoder} has no threshold; leave them out"
                )
            if variant.checkpoint is not None:
                self._as_it_is(name)
                continue
            if variant.objective is None:
                if name != "base":
                    raise ValueError(
                        f"{key}.objective is missing: name an objective, or a checkpoint"
                    )
                continue
            if variant.parent is None or not variant.stages:
                raise ValueError(f"{key} needs a parent and at least one stage")
            known(variant.parent, self.variants, f"{key}.parent")
            for scale in variant.scales or []:
                known(scale, self.scales, f"{key}.scales")
                if not self._made_at(variant.parent, scale):
                    raise ValueError(f"{key}.parent {variant.parent!r} is not made at {scale!r}")
            if variant.objective in ("mars", "block_diffusion") and variant.block_size < 2:
                raise ValueError(
                    f"{key}.block_size is {variant.block_size}: {variant.objective} needs at "
                    "least 2 (one token a step is tau = 1)"
                )
            if variant.alignment not in ALIGNMENTS.get(variant.objective, (variant.alignment,)):
                choices = " or ".join(ALIGNMENTS[variant.objective])
                raise ValueError(
                    f"{key}.alignment is {variant.alignment!r}: {variant.objective} knows {choices}"
                )
            self._lineage(name)
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds} has one twice; leave it out")
        if not self.seeds or not self.scales or not self.evaluation.benchmarks:
            raise ValueError("seeds, scales and evaluation.benchmarks need at least one entry")
        for name in self.evaluation.panels:
            known(name, self.evaluation.benchmarks, "evaluation.panels")
        if isinstance(limits := self.evaluation.limit, dict):
            for name in limits:
                known(name, self.evaluation.benchmarks, "evaluation.limit")
        if rules := self.evaluation.acceptance:
            known(rules.variant, self.variants, "evaluation.acceptance.variant")
            known(rules.benchmark, self.evaluation.benchmarks, "evaluation.acceptance.benchmark")
            self._decodes(rules.variant, "mars", "evaluation.acceptance.variant")
        if jacobi := self.evaluation.jacobi:
            known(jacobi.variant, self.variants, "evaluation.jacobi.variant")
            self._decodes(jacobi.variant, "ar", "evaluation.jacobi.variant")
        if grid := self.throughput:
            known(grid.scale, self.scales, "throughput.scale")
            known(grid.benchmark, self.evaluation.benchmarks, "throughput.benchmark")
            for key, name in (("variant", grid.variant), ("ar_variant", grid.ar_variant)):
                known(name, self.variants, f"throughput.{key}")
                if grid.scale not in self.scales_of(name):
                    raise ValueError(f"throughput.{key} {name!r} is not made at {grid.scale!r}")
            self._measures(grid)
        if cost := self.training_cost:
            self._costs(cost)
        return self

    def _sources(self) -> None:
        """Check where models come from that the study does not make."""
        for scale, made in self.scales.items():
            key = f"scales.{scale}"
            if made.revision and hub_reference(made.base) is None:
                raise ValueError(f"{key}.revision: {made.base!r} is no hub model; leave it out")
            for name in made.released:
                known(name, self.variants, f"{key}.released")
                if self.variants[name].objective is None or not self._made_at(name, scale):
                    raise ValueError(
                        f"{key}.released.{name}: the study trains no {name!r} at {scale!r}; "
                        "leave it out"
                    )
        if self.checkpoints == "released" and not any(s.released for s in self.scales.values()):
            raise ValueError(
                "checkpoints is 'released' and no scale names any: fill scales.….released "
                "(variant → checkpoint), or set checkpoints: trained"
            )

    def _as_it_is(self, name: str) -> None:
        """Check a variant that is a checkpoint from elsewhere."""
        variant, key = self.variants[name], f"variants.{name}"
        for field in ("objective", "parent", "stages", "learning_rate"):
            if getattr(variant, field):
                raise ValueError(
                    f"{key}.{field}: its checkpoint is evaluated as it is; leave {field} out"
                )
        for scale in variant.scales or []:
            known(scale, self.scales, f"{key}.scales")
        if len(self.scales_of(name)) != 1:
            raise ValueError(f"{key}.scales: a checkpoint is of one scale; name which")

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
        known(cost.scale, self.scales, "training_cost.scale")
        asked = [("ar_variant", cost.ar_variant, "ar_sft")]
        asked += [("variants", name, "mars") for name in cost.variants]
        asked += [("released", cost.released, "mars")] if cost.released else []
        for field, name, objective in asked:
            key = f"training_cost.{field}"
            known(name, self.variants, key)
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
        built_in = made.objective is None or made.objective in ALIGNMENTS
        if built_in and made.decoder != decoder:  # an unknown objective is reported as such
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

    def is_trained(self, variant: str) -> bool:
        """Whether a variant is trained by the study, and no checkpoint as given."""
        return self.checkpoints == "trained" and self.variants[variant].objective is not None

    def given_checkpoint(self, scale: str, variant: str) -> str:
        """What stands for a variant that the study does not train (see ``located``)."""
        made, at = self.variants[variant], self.scales[scale]
        if made.objective is not None:
            return located(at.released[variant], self.data_root)
        ref = made.checkpoint or at.base
        return located(ref, self.data_root, None if made.checkpoint else at.revision)

    def given_checkpoints(self) -> dict[str, str]:
        """Setting → checkpoint (see ``located``) of all that the study names and does not train."""
        found = {f"scales.{scale}.base": self.base(scale) for scale in self.scales}
        for scale, name in self.runs():
            made = self.variants[name]
            if not self.is_trained(name) and (made.objective or made.checkpoint):
                key = f"scales.{scale}.released.{name}" if made.objective else f"variants.{name}"
                found[key] = self.given_checkpoint(scale, name)
        return found

    def base(self, scale: str) -> str:
        """A scale's base checkpoint (see ``located``)."""
        return located(self.scales[scale].base, self.data_root, self.scales[scale].revision)

    def training_of(self, variant: str) -> Training:
        """The optimisation of a variant: the study's, with what the variant says otherwise."""
        rate = self.variants[variant].learning_rate
        return self.training.model_copy(update={} if rate is None else {"learning_rate": rate})

    def scales_of(self, variant: str) -> list[str]:
        """The scales at which a variant is made, in the study's order."""
        asked = [scale for scale in self.scales if self._made_at(variant, scale)]
        if self.checkpoints == "trained" or self.variants[variant].objective is None:
            return asked
        return [scale for scale in asked if variant in self.scales[scale].released]

    def _made_at(self, variant: str, scale: str) -> bool:
        """Whether the study asks for a variant at a scale, released or not."""
        only = self.variants[variant].scales
        return only is None or scale in only

    def left_out(self) -> list[tuple[str, str]]:
        """(scale, variant) of which a study of released checkpoints names none."""
        return [
            (scale, variant)
            for variant in self.variants
            for scale in self.scales
            if self._made_at(variant, scale) and scale not in self.scales_of(variant)
        ]

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
            known(scale, self.scales, "scales")
            known(variant, self.variants, "variants")
            known(scale, dict.fromkeys(self.scales_of(variant)), f"variants.{variant}.scales")
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

        if made.decoder in UNTHRESHOLDED:
            found = [at(1.0)]
        else:
            taus = list(made.thresholds or ev.thresholds)
            swept = ev.sweep == "full" or (ev.sweep == "panels" and benchmark in ev.panels)
            if swept and made.thresholds is None:
                taus += ev.sweep_thresholds
            found = [at(tau) for tau in dict.fromkeys(taus)]
            if (r := ev.acceptance) and (r.variant, r.benchmark) == (variant, benchmark):
                found += [at(tau, rule) for rule in r.rules for tau in r.thresholds]
        if ev.jacobi and ev.jacobi.variant == variant:
            found.append(
                Decoding(decoder="jacobi", block_size=ev.jacobi.window, tau=1.0, cache="cursor")
            )
        return list(dict.fromkeys(found))


def known(name: str, among: dict[str, Any], key: str) -> None:
    """Raise ValueError, with a remedy, for a name that is not ``among`` those there are."""
    if name not in among:
        near = difflib.get_close_matches(name, among, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(among)}"
        raise ValueError(f"{key}: unknown {name!r}; {hint}")
