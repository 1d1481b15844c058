"""Train one variant of a study: check everything first, then train, save, tidy up."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars import models
from mars.config import ALIGNMENTS, ROUNDING, Study, Training, Variant
from mars.data import data_identity, end_of_turn_id, load_examples
from mars.training import attention
from mars.training.objectives import (
    Objective,
    Setup,
    check_objective,
    make_objective,
    outside_code,
)
from mars.training.progress import Progress
from mars.training.steps import Order, shuffled
from mars.training.trainer import SumTrainer, TrainingError, device

log = logging.getLogger(__name__)


def train_variant(
    study: Study, seed: int, scale: str, variant: str, parent: Path | str, out: Path
) -> None:
    """Train ``variant`` from the checkpoint ``parent``; nothing to do where that is done already.

    Writes ``out/model``, ``out/training.csv`` and ``out/training.json``. A run that was stopped
    goes on from ``out/trainer``.

    Raises:
        ValueError, CheckpointError, DataError: before any long work.
        TrainingError: the loss or the gradient is not finite.
        SystemExit: 143, after SIGTERM, with the state saved.
    """
    out = Path(out)
    made, config = study.variants[variant], with_precision(study.training_of(variant))
    code = outside_code(check_objective(made.objective))
    folder = models.resolve_checkpoint(parent)
    recipe = {
        "study": study.study,
        "scale": scale,
        "variant": variant,
        "seed": seed,
        "parent": models.checkpoint_hash(folder),
        "data": study.data.model_dump(mode="json"),
        "data_identity": data_identity(study.data, made.stages, seed),
        "training": config.model_dump(mode="json", exclude=set(ROUNDING)),
        "settings": settings_of(made),
        **({"code": code} if code else {}),
    }
    if is_done(out, recipe):
        log.info("%s: already trained with this recipe", out)
        return

    check_processes(config)
    torch.set_num_threads(config.threads)
    tokenizer = models.load_tokenizer(folder)
    model = models.load_model(folder, parameter_dtype(config))
    objective = make_objective(str(made.objective), setup_of(made, model, tokenizer, seed))
    examples = load_examples(study.data, tokenizer, made.stages, seed)
    check_context(model, objective, int(examples.lengths().max()), folder)
    trainer = fit(
        model, tokenizer, objective, shuffled(examples, config.epochs, seed),
        config, out, seed, recipe,
        epoch_examples=len(examples), label=f"{scale} {variant}",
    )  # fmt: skip
    trained = trainer.whole_model()
    if trained is not None:
        models.save_checkpoint(trained, tokenizer, out / "model", recipe)
        told = {"data": examples.report.as_json(), **computed(trained, config)}
        write_summary(out / "training.json", trainer.progress, told)
        shutil.rmtree(out / "trainer", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def settings_of(variant: Variant) -> dict[str, Any]:
    """What of a variant shaped its model, and how to read a model that a plug-in trained."""
    names = {"objective", "stages", "block_size", "ar_weight", "alignment"}
    if variant.objective not in ALIGNMENTS:
        names.add("decoder")
    return variant.model_dump(mode="json", include=names)


def is_done(out: Path, recipe: dict[str, Any]) -> bool:
    """Whether a finished model of exactly this recipe is there."""
    try:
        folder = models.resolve_checkpoint(out / "model")
        record = models.checkpoint_record(folder)
    except models.CheckpointError:
        return False
    return record.get("recipe") == recipe and (out / "training.json").is_file()


def setup_of(variant: Variant, model: PreTrainedModel, tokenizer: Tokenizer, seed: int) -> Setup:
    """The settings of a variant's objective for this model and tokenizer."""
    end = end_of_turn_id(tokenizer)
    return Setup(
        block_size=variant.block_size,
        ar_weight=variant.ar_weight,
        alignment=variant.alignment,
        mask_id=models.mask_token_id(model, tokenizer),
        end_id=end,
        pad_id=end if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
        seed=seed,
    )


def check_processes(config: Training) -> None:
    """Raise TrainingError where not as many processes were started as the settings name.

    One process alone would train all the same, only slowly; nobody would notice.
    """
    started = int(os.environ.get("WORLD_SIZE", 1))
    if config.processes > 1 and started != config.processes:
        file = config.accelerate
        how = f"--config_file {shlex.quote(file)}" if file else "--multi_gpu"  # on a CPU too
        raise TrainingError(
            f"training.processes is {config.processes} and {started} started: use accelerate "
            f"launch {how} --num_processes {config.processes} -m mars train …"
        )


def check_context(model: PreTrainedModel, objective: Objective, longest: int, where: Path) -> None:
    """Raise ValueError where the longest conversation does not fit the model's positions."""
    context = getattr(model.config, "max_position_embeddings", None)
    needed = objective.padded(longest)
    if context is not None and needed > context:
        raise ValueError(
            f"{where}: its context is {context} tokens and the longest conversation needs "
            f"{needed}; lower data.max_length"
        )


def fit(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    objective: Objective,
    order: Order,
    config: Training,
    out: Path,
    seed: int,
    recipe: dict[str, Any],
    *,
    epoch_examples: int,
    label: str,
) -> SumTrainer:
    """Train ``model`` in place, resuming ``out/trainer`` where that belongs to this recipe.

    Several processes, where accelerate started them, do this together.
    """
    model.config.use_cache = False
    embedding: Any = model.get_input_embeddings()
    embedding.padding_idx = None  # pad may be end-of-turn, which has to learn
    if config.activation_checkpointing:
        recompute_activations(model)
    with models.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        trainer = SumTrainer(
            model, tokenizer, objective, order, config, out, seed, epoch_examples, label
        )
        if trainer.is_world_process_zero():
            _keep_recipe(out / "trainer", recipe)
        trainer.accelerator.wait_for_everyone()
    trainer.run()
    model.config.use_cache = True
    return trainer


def recompute_activations(model: Any) -> None:
    """Under the name that this version of ``transformers`` gives it."""
    old = model.gradient_checkpointing_enable
    getattr(model, "activation_checkpointing_enable", old)({"use_reentrant": False})


def _keep_recipe(folder: Path, recipe: dict[str, Any]) -> None:
    """Remove the state of another recipe; note this one."""
    kept = folder / "recipe.json"
    if not (kept.is_file() and kept.read_text(encoding="utf-8") == json.dumps(recipe)):
        if kept.is_file():
            log.warning("%s: of another recipe (%s): removed", folder, _others(kept, recipe))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kept.write_text(json.dumps(recipe), encoding="utf-8")


def _others(kept: Path, recipe: dict[str, Any]) -> str:
    """The settings of which a recipe that was kept had others, as far as it can be read."""
    try:
        was = dict(json.loads(kept.read_text(encoding="utf-8")))
    except ValueError:
        return "not readable"
    is_now = json.loads(json.dumps(recipe))
    keys = [*is_now, *(key for key in was if key not in is_now)]
    return ", ".join(key for key in keys if was.get(key) != is_now.get(key)) or "order"


def write_summary(file: Path, progress: Progress, more: dict[str, Any]) -> None:
    """Write ``training.json``: the totals of the run, and ``more``; whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    with models.writing(file.parent):
        told = {**progress.summary(), **more}
        new.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        os.replace(new, file)


def with_precision(config: Training) -> Training:
    """The settings, with the precision of this machine where they leave it open."""
    return config.model_copy(update={"dtype": models.choose_dtype(config.dtype, device())})


def computed(model: PreTrainedModel, config: Training) -> dict[str, Any]:
    """How a model was trained here, and where its mask token was found."""
    return {
        "device": device(),
        "dtype": config.dtype,
        "attention": attention.kind(torch.device(device())),
        "mask_token_id": getattr(model.config, "mask_token_id", None),
        "mask_token_source": getattr(model.config, "mask_token_source", "recorded by its parent"),
    }


def parameter_dtype(config: Training) -> str:
    """bfloat16 is autocast over float32 parameters."""
    return "float64" if config.dtype == "float64" else "float32"


__all__ = ["TrainingError", "train_variant"]
