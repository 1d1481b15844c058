"""What a study's results lack, and the command that makes each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mars.analysis.results import (
    arrivals_files,
    as_rows,
    load_evaluation,
    run_folder,
    throughput_files,
    training_cost_files,
)
from mars.config import Study, load_study

DEFAULT = Path(__file__).parents[2] / "config" / "embedded.yaml"
"""The study that Snakemake runs where no other is named."""

FIELDS = ["seed", "scale", "variant", "benchmark", "decoder", "block_size", "tau", "rule"]
"""What tells the rows of ``evaluation.csv`` apart."""


@dataclass(frozen=True)
class Missing:
    """A result that is not there, and the command that makes it.

    Attributes:
        source: what lacks it: ("evaluation", scale, variant), ("throughput",), ….
        targets: the files that the command makes.
    """

    what: str
    command: str
    source: tuple[str, ...] = ()
    targets: tuple[Path, ...] = ()


def missing(study: Study, results: Path) -> list[Missing]:
    """What a study's results lack, in the order in which it would be made."""
    of_study = configfile(study, results)
    gaps = []

    def add(what: str, source: tuple[str, ...], *targets: Path) -> None:
        # the targets come first: --configfile takes every word that follows it
        names = " ".join(t.as_posix() for t in targets)
        command = f"snakemake --cores 8 {names}{again(targets)}{of_study}"
        gaps.append(Missing(what, command, source, targets))

    have = load_evaluation(study, results)
    short = have[have["available"] < have["expected"]]
    short = short.drop_duplicates(["seed", "scale", "variant", "benchmark"])
    known = set(have[FIELDS].itertuples(index=False, name=None))
    for seed in study.seeds:
        for scale, variant in study.runs():
            folder = run_folder(results, seed, scale, variant)
            where = f"seed {seed}, {scale}, {variant}"
            evaluated = ("evaluation", scale, variant)
            if study.is_trained(variant):
                lost = [n for n in ("training.csv", "training.json") if not (folder / n).exists()]
                if lost:
                    add(
                        f"training of {where}",
                        ("training", scale, variant),
                        *(folder / n for n in lost),
                    )
            if not (folder / "evaluation.csv").exists():
                add(f"evaluation of {where}", evaluated, folder / "evaluation.csv")
                continue
            for benchmark in study.evaluation.benchmarks:
                wanted = [
                    (seed, scale, variant, benchmark, d.decoder, d.block_size, d.tau, d.rule)
                    for d in study.decodings(variant, benchmark)
                ]
                absent = [w for w in wanted if w not in known]
                if absent:
                    taus = ", ".join(dict.fromkeys(f"{w[4]} τ {w[6]:g} {w[7]}" for w in absent))
                    what = f"evaluation of {where} on {benchmark} ({taus})"
                    add(what, evaluated, folder / "evaluation.csv")
            of_run = short[["seed", "scale", "variant"]].eq([seed, scale, variant]).all(axis=1)
            for row in as_rows(short[of_run]):
                there = f"{row['available']:,.0f} of {row['expected']:,.0f} documents"
                what = f"{row['benchmark']} of {where} had {there}: fetch it again, then evaluate"
                add(what, evaluated, folder / "evaluation.csv")
        for what, source, files in (
            ("wall-clock grid", "throughput", throughput_files(study, results)),
            ("arrival trace", "arrivals", arrivals_files(study, results)),
            ("training cost", "training_cost", training_cost_files(study, results)),
        ):
            if seed in files and not files[seed].exists():
                add(f"{what} of seed {seed}", (source,), files[seed])
    for scale, variant in study.left_out():
        own = f"--config study={study.study}_trained checkpoints=trained"
        what = f"{variant} at {scale}: its authors released no checkpoint of it; trained, it is a"
        gaps.append(
            Missing(
                f"{what} study of its own",
                f"snakemake --cores 8{of_study} {own} -- all",
                ("evaluation", scale, variant),
            )
        )
    if not (results / "environment.json").exists():
        add("the run's environment", ("environment",), results / "environment.json")
    return gaps


def configfile(study: Study, results: Path) -> str:
    """The option with which Snakemake runs this very study, after a space; none for the default.

    It names the configuration as it was run: the study's own file may lie anywhere, and knows
    nothing of what ``--config`` changed.
    """
    if study == _default():
        return ""
    return f" --configfile {(results / 'config.yaml').as_posix()}"


@cache
def _default() -> Study | None:
    return load_study(DEFAULT) if DEFAULT.is_file() else None


def again(targets: tuple[Path, ...]) -> str:
    """The option that makes files anew that are there and lack something, after a space."""
    there = " ".join(t.as_posix() for t in targets if t.exists())
    return f" --forcerun {there}" if there else ""
