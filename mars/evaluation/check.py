"""Whether a study can run: what starts its training, its base checkpoints, its benchmarks.

What is wrong is a ConfigError, one line naming the study file, the key and the remedy. Nothing is
trained or decoded, and no weights are loaded.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from mars.config import ConfigError, Study
from mars.evaluation.benchmarks import LoadedBenchmark, load_study, requests, shortfall
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.source import EvaluationError, Source, open_checkpoint
from mars.models import CheckpointError


def check_launcher(study: Study, name: str) -> list[str]:
    """Check that accelerate's configuration is there, and what it asks for installed.

    Args:
        study: the study.
        name: its file, for messages.

    Returns:
        What was found, a line each.
    """
    file = study.training.accelerate
    if file is None or study.checkpoints != "trained":
        return []
    key = f"{name}: training.accelerate: {file}"
    try:
        held = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        kind = str(held["distributed_type"])
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror or error}; check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        raise ConfigError(
            f"{key}: no configuration of accelerate (it has no distributed_type); make one with "
            "`accelerate config`, or take one of config/accelerate/"
        ) from None
    if kind == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise ConfigError(
            f"{key}: needs the package deepspeed, which is not installed here: "
            "pip install deepspeed, or name config/accelerate/eight_gpus_fsdp.yaml"
        )
    return [f"training.accelerate: {kind}"]


def check_bases(study: Study, name: str) -> dict[str, Source]:
    """Scale → its base checkpoint, whole and with a chat template.

    Args:
        study: the study.
        name: its file, for messages.
    """
    found = {}
    for scale in study.scales:
        try:
            base = study.base(scale)
            found[scale] = open_checkpoint(base, study.training.dtype, generate=False)
        except (CheckpointError, EvaluationError) as error:
            told = _fetched_by(study, name, error)
            raise ConfigError(f"{name}: scales.{scale}.base: {told}") from None
    return found


def check_given(study: Study, name: str) -> list[str]:
    """Check the checkpoints that are evaluated as they are given, released ones among them.

    Returns:
        What was found, a line each.
    """
    lines = []
    for key, ref in study.given_checkpoints().items():
        if key.endswith(".base"):
            continue
        try:
            source = open_checkpoint(ref, study.training.dtype, generate=False)
        except (CheckpointError, EvaluationError) as error:
            raise ConfigError(f"{name}: {key}: {_fetched_by(study, name, error)}") from None
        lines.append(f"{key}: {source.checkpoint}")
    return lines


def _fetched_by(study: Study, name: str, error: Exception) -> str:
    """What is wrong with a checkpoint; a command that fetches it is this study's."""
    released = " --set checkpoints=released" * (study.checkpoints == "released")
    return str(error).replace("--config …", f"--config {name}{released}")


def check_benchmarks(study: Study, bases: dict[str, Source], name: str) -> list[str]:
    """Check that every benchmark is an lm-eval task and that its prompts fit each base.

    Returns:
        What was found, a line each.
    """
    try:
        loaded = load_study(study)
        lines = [
            f"evaluation.benchmarks.{benchmark.name}: reports {benchmark.metric}"
            for benchmark in loaded.values()
        ]
        lines += [line for benchmark in loaded.values() if (line := shortfall(benchmark))]
        for scale, source in bases.items():
            lines += [_fits(study, benchmark, scale, source) for benchmark in loaded.values()]
    except EvaluationError as error:
        raise ConfigError(f"{name}: {error}") from None
    return lines


def _fits(study: Study, benchmark: LoadedBenchmark, scale: str, source: Source) -> str:
    """Check that most prompts and their budgets fit the context; say which do not, or how long
    the longest is.
    """
    lm = MarsLM(source, max_new_tokens=study.evaluation.max_new_tokens, **_widest(study, scale))
    key = f"evaluation.benchmarks.{benchmark.name}"
    try:
        needs = lm.needs(requests(lm, benchmark, study.evaluation.limit_of(benchmark.name)))
    except EvaluationError as error:
        raise EvaluationError(f"{key}: {error}") from None
    if not needs:
        raise EvaluationError(f"{key}: the task has no documents; leave it out")

    def length(need: tuple[str, int, int, int]) -> int:
        return need[2] + max(need[3], lm.least_response)

    task, document, prompt, budget = longest = max(needs, key=length)
    place = f"scales.{scale}.base"
    if length(longest) <= source.context:
        return (
            f"{key}: {len(needs)} documents fit {place}, the longest prompt and response with "
            f"{length(longest)} of {source.context} positions"
        )
    cut = sum(length(need) > source.context for need in needs)
    empty = sum(need[2] + lm.least_response > source.context for need in needs)
    what = (
        f"{task}, document {document}: its prompt of {prompt} tokens and a response of "
        f"{max(budget, lm.least_response)} exceed the {source.context} positions of {place}"
    )
    if 2 * cut <= len(needs):
        return (
            f"{key}: warning: {cut} of {len(needs)} documents may be cut short at {place}, and "
            f"{empty} have no room for a response; they are scored, and count as truncated where "
            f"they are cut. The longest is {what}"
        )
    remedy = f"lower evaluation.max_new_tokens to at most {source.context - prompt}"
    if prompt + lm.least_response > source.context:
        remedy = "leave the benchmark out, or ask fewer shots (num_fewshot)"
    raise EvaluationError(f"{key}: {cut} of {len(needs)} documents do not fit; {what}; {remedy}")


def _widest(study: Study, scale: str) -> dict[str, Any]:
    """The decoding that needs most room after a prompt: whole blocks of the largest size."""
    sizes = [
        made.block_size
        for name, made in study.variants.items()
        if made.decoder == "block_diffusion" and scale in study.scales_of(name)
    ]
    return {"decoder": "block_diffusion", "block_size": max(sizes)} if sizes else {"decoder": "ar"}
