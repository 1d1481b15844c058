"""The study configuration: the one source of truth for every setting and its default.

A study is a YAML file under ``config/`` (``config/embedded.yaml`` is the default). It is checked
here, and the JSON schema that Snakemake validates against is generated from these classes
(``mars config --schema``). Errors name the file, the key and the remedy.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Tau = Annotated[float, Field(gt=0.0, le=1.0)]
Rule = Literal["probability", "entropy", "margin"]
CacheName = Literal["none", "block", "cursor"]
DecoderName = Literal["ar", "mars", "block_diffusion", "jacobi"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]


ALIGNMENTS = {
    "ar_sft": ("decoder",),
    "mars": ("decoder", "stream"),
    "block_diffusion": ("stream", "own"),
}
"""Which alignments an objective knows (docs/method.md)."""


class ConfigError(ValueError):
    """A study configuration that cannot be run; the message is one line for the user."""


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Section):
    """A base checkpoint and the scale of the paper that it stands for."""

    base: str = Field(description="embedded:<name>, or a checkpoint folder")
    paper: str | None = Field(None, description="the paper's scale it is shown beside, e.g. 0.5B")


class Data(Section):
    """Where training conversations come from."""

    source: str = Field("embedded", description="'embedded', or the path of a JSONL file")
    stage1_examples: int = Field(12_000, ge=1, description="distinct conversations of stage 1")
    stage2_examples: int = Field(12_000, ge=1, description="distinct conversations of stage 2")
    max_length: int = Field(128, ge=8, description="tokens; longer conversations are cut")


class Training(Section):
    """Optimisation, shared by every variant of a study."""

    learning_rate: float = Field(1e-3, gt=0)
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    warmup_ratio: float = Field(0.03, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    batch_size: int = Field(64, ge=1, description="conversations per optimizer step")
    micro_batch_size: int = Field(64, ge=1, description="conversations per forward")
    epochs: int = Field(1, ge=1)
    save_steps: int = Field(50, ge=1, description="optimizer steps between resumable checkpoints")
    logging_steps: int = Field(5, ge=1)
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    threads: int = Field(1, ge=1, description="CPU threads of one training process")

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Training:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size "
                f"{self.micro_batch_size}: choose a divisor"
            )
        return self


class Variant(Section):
    """One trained model: an objective applied to a parent on the examples of some stages."""

    objective: str | None = Field(None, description="none: the base checkpoint as given")
    parent: str | None = Field(None, description="the variant whose checkpoint it starts from")
    stages: list[Literal[1, 2]] = Field(default_factory=list)
    scales: list[str] | None = Field(None, description="default: every scale of the study")
    block_size: int = Field(1, ge=1)
    ar_weight: float = Field(1.0, ge=0, description="weight of the SFT loss L_AR")
    alignment: Literal["decoder", "stream", "own"] = "decoder"

    @property
    def decoder(self) -> DecoderName:
        """The method that reads this variant in the quality tables."""
        if self.objective == "mars":
            return "mars"
        return "block_diffusion" if self.objective == "block_diffusion" else "ar"


class Benchmark(Section):
    """An lm-eval task and how its score is read."""

    column: str = Field(description="the paper's column it stands under, e.g. GSM8K")
    metric: str = Field(description="lm-eval metric key, e.g. exact_match,strict-match")
    num_fewshot: int = Field(0, ge=0)


class Decoding(Section):
    """Everything that shapes a generation besides the checkpoint and the prompt."""

    decoder: DecoderName
    block_size: int = Field(1, ge=1, description="tokens drafted a step (jacobi: the window)")
    tau: Tau = 1.0
    rule: Rule = "probability"
    cache: CacheName = "cursor"
    cache_block: int | None = Field(None, ge=1, description="B_cache, with cache: block")
    temperature: float = Field(0.0, ge=0)
    alignment: Literal["stream", "own"] | None = Field(None, description="of block diffusion only")

    @property
    def id(self) -> str:
        """A file name that differs wherever a setting differs."""
        parts = [
            self.decoder,
            f"B{self.block_size}",
            f"tau{_exact(self.tau)}",
            self.rule,
            self.cache,
        ]
        if self.cache_block is not None:
            parts.append(f"C{self.cache_block}")
        if self.temperature:
            parts.append(f"T{_exact(self.temperature)}")
        if self.alignment == "own":
            parts.append("own")
        return "_".join(parts)


def _exact(value: float) -> str:
    """A number as short as it can be without meaning another."""
    return repr(value).removesuffix(".0")


class Acceptance(Section):
    """The comparison of acceptance rules (the paper's appendix)."""

    rules: list[Rule] = ["probability", "entropy", "margin"]
    variant: str = "mars_b4"
    benchmark: str = "toy_gsm8k"
    thresholds: list[Tau] = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5]


class Jacobi(Section):
    """Jacobi decoding of the AR model: tokens per forward beside the paper's 1.07."""

    variant: str = "ar_sft"
    window: int = Field(4, ge=1)


class Evaluation(Section):
    """Benchmarks and the thresholds they are run at."""

    benchmarks: dict[Name, Benchmark]
    limit: int | None = Field(None, ge=1, description="documents a (sub-)task; null: all")
    batch_size: int = Field(64, ge=1, description="rows decoded together")
    max_new_tokens: Annotated[int, Field(ge=1)] | Literal["task"] = Field(
        "task", description="task: the task's own budget"
    )
    thresholds: list[Tau] = Field([1.0, 0.95], description="for MARS variants, every benchmark")
    sweep: Literal["none", "panels", "full"] = Field(
        "panels", description="where sweep_thresholds run: the frontier's panels, or everywhere"
    )
    sweep_thresholds: list[Tau] = [0.9, 0.8, 0.7, 0.6, 0.5]
    panels: list[str] = Field(description="the benchmarks of the frontier figure")
    acceptance: Acceptance | None = None
    jacobi: Jacobi | None = None
    threads: int = Field(1, ge=1)


class Throughput(Section):
    """The wall-clock grid (Table 5)."""

    scale: str
    variant: str = "mars_b4"
    ar_variant: str = "ar_sft"
    benchmark: str = "toy_gsm8k"
    prompts: int = Field(64, ge=1)
    tau: Tau = 0.95
    batch_sizes: list[Annotated[int, Field(ge=1)]] = [4, 8, 16]
    cache_blocks: list[Annotated[int, Field(ge=1)]] = [4, 8, 16, 32]
    repeats: int = Field(3, ge=1)
    max_new_tokens: int = Field(64, ge=1)
    threads: int = Field(1, ge=1)


class Study(Section):
    """One study: scales, variants, benchmarks, thresholds, wall-clock grid."""

    study: Name
    seeds: list[Annotated[int, Field(ge=0)]] = [0]
    scales: dict[Name, Scale]
    data: Data = Data()
    training: Training = Training()
    variants: dict[Name, Variant]
    evaluation: Evaluation
    throughput: Throughput | None = None

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
            self._decodes(grid.variant, "mars", "throughput.variant")
            self._decodes(grid.ar_variant, "ar", "throughput.ar_variant")
        return self

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


def parse_study(raw: Any, source: str = "configuration") -> Study:
    """Check a mapping read from ``source`` (a file name, for messages) and return the study.

    Raises:
        ConfigError: one line naming the file, the key and the remedy.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, got {type(raw).__name__}")
    try:
        return Study.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None


def load_study(path: str | Path) -> Study:
    """Read and check a study file. Raises ConfigError as ``parse_study`` does."""
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = ", ".join(sorted(str(p) for p in path.parent.glob("*.yaml"))) or "none here"
        raise ConfigError(f"{path}: no such file; study files: {near}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return parse_study(raw, str(path))


def dump_study(study: Study) -> str:
    """The study as YAML with every default written out."""
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def json_schema() -> str:
    """The JSON schema of a study file, as text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(schema | Study.model_json_schema(), indent=2, sort_keys=True) + "\n"


def _explain(error: ValidationError) -> str:
    """The first problem of a validation, as one line with its key and a remedy."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(fields)}"
        return f"{key}: unknown key; {hint}{more}"
    if problem["type"] == "missing":
        return f"{key}: missing; add it{more}"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ") + more
    return f"{key}: {problem['msg']}, got {problem['input']!r}{more}"


def _fields_at(loc: tuple[int | str, ...]) -> list[str]:
    """Names of the settings of the section at a location, found by walking the JSON schema."""
    schema = Study.model_json_schema()
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
