"""What a study will cost: its jobs, checkpoints, hours and disk, and how much of it is there.

Every hour is work ÷ rate: floating-point operations from the models' sizes and the study's
settings, rates from ``rates.yaml``. Of the length of an answer the bound is used where nothing else
is known; prompts are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mars.config import Decoding, Study
from mars.planning.rates import Rates
from mars.planning.sizes import parameters

_STATES = 3  # of a run on disk at once: the two that are kept, and the one being written


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes:
        rule: as in the workflow.
        output: a file that is there once it is done.
        hours: of the device; of one core for a job without a model.
        disk: bytes that it leaves.
        on_device: whether its hours are the device's.
    """

    rule: str
    output: str
    hours: float
    disk: float = 0.0
    on_device: bool = True


@dataclass(frozen=True)
class Stage:
    """All jobs of one rule.

    Attributes:
        rule: as in the workflow.
        jobs, done: how many, and how many of them are there.
        hours, remaining_hours: of the device (``unit``), or of a core.
        disk: bytes they leave.
        unit: of the hours.
    """

    rule: str
    jobs: int
    done: int
    hours: float
    remaining_hours: float
    disk: float
    unit: str


@dataclass(frozen=True)
class Plan:
    """What ``mars plan`` prints.

    Attributes:
        checkpoints: models that training makes, of which ``checkpoints_done`` are there.
        training_disk: bytes that the largest training run holds while it runs.
        notes: where the numbers come from.
    """

    study: str
    device: str
    stages: tuple[Stage, ...]
    checkpoints: int
    checkpoints_done: int
    training_disk: float
    notes: tuple[str, ...]


def make_plan(
    study: Study, rates: Rates, presentation: Mapping[str, list[str]], root: Path = Path()
) -> Plan:
    """Reckon what a study costs.

    Args:
        study: the study.
        rates: of the device it is to run on.
        presentation: rule → an output of each of its jobs, of the rules that have no model
            (tables, figures, report).
        root: the checkout; looked at for what is done.

    Raises:
        PlanError: the size of a model is not known.
    """
    costs = _Costs(study, rates)
    jobs = [*costs.jobs()]
    for rule, outputs in presentation.items():
        seconds = rates.seconds(rule)
        jobs += [Job(rule, made, seconds / 3600, on_device=False) for made in outputs]
    stages = []
    for rule in dict.fromkeys(job.rule for job in jobs):
        mine = [job for job in jobs if job.rule == rule]
        waiting = [job for job in mine if not (root / job.output).exists()]
        stages.append(
            Stage(
                rule,
                len(mine),
                len(mine) - len(waiting),
                sum(job.hours for job in mine),
                sum(job.hours for job in waiting),
                sum(job.disk for job in mine),
                rates.device.hours if mine[0].on_device else "core-hours",
            )
        )
    trained = next((stage for stage in stages if stage.rule == "train"), None)
    sizes = [costs.size(scale) for scale, name in study.runs() if study.is_trained(name)]
    return Plan(
        study.study,
        rates.device.name,
        tuple(stages),
        trained.jobs if trained else 0,
        trained.done if trained else 0,
        max(sizes, default=0.0) * costs.weight_bytes * 3 * _STATES,  # weights, and two moments
        tuple(costs.notes()),
    )


class _Costs:
    """The jobs of a study that use a model, each with its hours."""

    def __init__(self, study: Study, rates: Rates) -> None:
        self.study = study
        self.rates = rates
        # of a trained parameter, on disk; bfloat16 is autocast over float32
        self.weight_bytes = 8 if study.training.dtype == "float64" else 4
        self.sizes = {scale: parameters(study, scale) for scale in study.scales}
        source, longest = study.data.source, study.data.max_length
        self.tokens, self.response, self.example_note = rates.example(source, longest)

    def size(self, scale: str) -> float:
        """Parameters of a scale's models."""
        return self.sizes[scale][0]

    def jobs(self) -> Iterator[Job]:
        study = self.study
        for seed in study.seeds:
            folder = f"results/{study.study}/seed{seed}"
            for scale, variant in study.runs():
                run = f"{folder}/{scale}/{variant}"
                if study.is_trained(variant):
                    weights = self.weight_bytes * self.size(scale)
                    hours = self.training_hours(scale, variant)
                    yield Job("train", f"{run}/training.json", hours, weights)
                hours, answers = self.evaluation_hours(scale, variant)
                disk = answers * self.rates.table["record_bytes"]
                yield Job("evaluate", f"{run}/evaluation.csv", hours, disk)
            if study.throughput:
                yield Job("throughput", f"{folder}/throughput.csv", self.throughput_hours())
            if study.throughput and study.throughput.trace:
                yield Job("arrivals", f"{folder}/arrivals.csv", self.arrivals_hours())
            if study.training_cost:
                yield Job("training_cost", f"{folder}/training_cost.csv", self.step_hours())

    def step_flops(self, scale: str, variant: str) -> float:
        """Of one example in training: six a parameter and column, masks included."""
        made = self.study.variants[variant]
        masks = 0.0
        if made.objective != "ar_sft" and made.block_size > 1:
            whole = made.alignment != "decoder"
            masks = self.response * (1.0 if whole else 1 - 1 / made.block_size)
        return 6 * self.size(scale) * self.tokens * (1 + masks)

    def training_hours(self, scale: str, variant: str) -> float:
        data, training = self.study.data, self.study.training
        stages = {1: data.stage1_examples, 2: data.stage2_examples}
        examples = sum(stages[stage] for stage in self.study.variants[variant].stages)
        flops = self.step_flops(scale, variant) * examples * training.epochs
        return flops / self.rates.device.training_flops / 3600

    def evaluation_hours(self, scale: str, variant: str) -> tuple[float, int]:
        """Hours, and how many answers are written."""
        made = self.study.evaluation
        seconds, answers = 0.0, 0
        for benchmark in made.benchmarks:
            documents = self.rates.documents(benchmark, made.limit_of(benchmark))
            length = self.rates.answer(benchmark, made.max_new_tokens)
            for decoding in self.study.decodings(variant, benchmark):
                seconds += self.decoding(scale, documents, length, made.batch_size, decoding)
                answers += documents
        return seconds / 3600, answers

    def decoding(
        self, scale: str, documents: int, length: float, rows: int, decoding: Decoding
    ) -> float:
        """Seconds in which so many answers of a length are decoded, a token a forward."""
        drafts = decoding.block_size if decoding.tau < 1 or decoding.decoder != "mars" else 1
        return self.forwards(scale, documents * length, drafts, rows)

    def forwards(self, scale: str, forwards: float, columns: float, rows: int) -> float:
        """Device-seconds of so many forwards of a row, with so many rows at once.

        Of the GPUs that a model is spread over, one computes at a time, and all are held.
        """
        device = self.rates.device
        held = self.study.evaluation.gpus_per_process if device.hours == "GPU-hours" else 1
        flops = 2 * self.size(scale) * columns * forwards / device.decoding_flops
        return held * max(flops, forwards / rows * device.forward_seconds)

    def throughput_hours(self) -> float:
        grid = self.study.throughput
        assert grid is not None
        methods = 4 + len(grid.cache_blocks)  # AR, twice; MARS uncached, cursor; its blocks
        drafts = grid.block_size or self.study.variants[grid.variant].block_size
        parts = bool(grid.thresholds) + bool(grid.replay)
        seconds = 0.0
        for size in grid.batch_sizes:
            forwards = grid.prompts_at(size) * grid.max_new_tokens
            seconds += parts * methods * self.forwards(grid.scale, forwards, drafts, size)
        return seconds * grid.repeats / 3600

    def arrivals_hours(self) -> float:
        grid = self.study.throughput
        assert grid is not None
        assert grid.trace is not None
        drafts = grid.block_size or self.study.variants[grid.variant].block_size
        policies = len(grid.trace.thresholds) + 1
        forwards = policies * sum(grid.trace.requests) * grid.max_new_tokens
        return self.forwards(grid.scale, forwards, drafts, grid.trace.slots) / 3600

    def step_hours(self) -> float:
        cost = self.study.training_cost
        assert cost is not None
        names = [cost.ar_variant, *cost.variants, *filter(None, [cost.released])]
        steps = cost.steps * cost.repeats * cost.conversations
        flops = sum(self.step_flops(cost.scale, name) for name in names) * steps
        return flops / self.rates.device.training_flops / 3600

    def notes(self) -> Iterator[str]:
        """Where the numbers come from, a line each."""
        device = self.rates.device
        yield f"{device.name}: {device.source}"
        for scale, (size, source) in self.sizes.items():
            yield f"{scale}: {size / 1e6:.4g}M parameters, {source}"
        if any(self.study.is_trained(name) for name in self.study.variants):
            yield f"training examples: {self.example_note}"
        known = self.rates.table["benchmarks"]
        names = list(self.study.evaluation.benchmarks)
        if bound := [name for name in names if "tokens" not in known.get(name, {})]:
            yield (
                f"answers: as long as the budget, a token a forward ({', '.join(bound)}); prompts "
                "are not counted"
            )
        if unknown := [name for name in names if "documents" not in known.get(name, {})]:
            count = self.rates.table["documents"]
            yield f"documents: taken as {count} of each of {', '.join(unknown)}"
        yield "done: outputs that are there; `snakemake -n` says whether they still stand"
