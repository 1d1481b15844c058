"""Train one variant of a study: check everything first, then train, save, tidy up."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars import models
from mars.config import Study, Training, Variant
from mars.data import end_of_turn_id, load_examples
from mars.training.objectives import Objective, Setup, check_objective, make_objective
from mars.training.progress import Progress
from mars.training.trainer import Ordered, SumTrainer, TrainingError, shuffled

log = logging.getLogger(__name__)


def train_variant(
    study: Study, seed: int, scale: str, variant: str, parent: Path | str, out: Path
) -> None:
    """Train ``variant`` from the checkpoint ``parent``; nothing to do where that is done already.

    Writes ``out/model``, ``out/training.csv`` and ``out/training.json``. A run that was stopped
    goes on from ``out/trainer``.

    Raises:
        ValueError, CheckpointError, DataError: before any long work.
        TrainingError: the loss is not finite.
        SystemExit: 143, after SIGTERM, with the state saved.
    """
    out = Path(out)
    made = study.variants[variant]
    check_objective(made.objective)
    folder = models.resolve_checkpoint(parent)
    recipe = {
        "study": study.study,
        "scale": scale,
        "variant": variant,
        "seed": seed,
        "parent": models.checkpoint_hash(folder),
        "data": study.data.model_dump(mode="json"),
        "training": study.training.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
        "settings": made.model_dump(mode="json", exclude={"scales", "parent"}),
    }
    if is_done(out, recipe):
        log.info("%s: already trained with this recipe", out)
        return

    torch.set_num_threads(study.training.threads)
    tokenizer = models.load_tokenizer(folder)
    model = models.load_model(folder, _parameter_dtype(study.training))
    objective = make_objective(str(made.objective), setup_of(made, model, tokenizer, seed))
    examples = load_examples(study.data, tokenizer, made.stages, seed)
    check_context(model, objective, max(map(len, examples)), folder)
    epochs = study.training.epochs
    data = Ordered(
        shuffled(examples, epochs, seed), len(examples) * epochs, study.training.batch_size
    )
    progress = fit(
        model, tokenizer, objective, data, study.training, out, seed, recipe,
        epoch_examples=len(examples), label=f"{scale} {variant}",
    )  # fmt: skip
    models.save_checkpoint(model, tokenizer, out / "model", recipe)
    write_summary(out / "training.json", progress)
    shutil.rmtree(out / "trainer", ignore_errors=True)


_WITHOUT_EFFECT = {"save_steps", "logging_steps", "threads"}
"""Settings that may change between a run and its continuation."""


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
    data: Ordered,
    config: Training,
    out: Path,
    seed: int,
    recipe: dict[str, Any],
    *,
    epoch_examples: int,
    label: str,
) -> Progress:
    """Train ``model`` in place, resuming ``out/trainer`` where that belongs to this recipe."""
    with models.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        kept = out / "trainer" / "recipe.json"
        if not (kept.is_file() and kept.read_text(encoding="utf-8") == json.dumps(recipe)):
            shutil.rmtree(out / "trainer", ignore_errors=True)
            kept.parent.mkdir()
            kept.write_text(json.dumps(recipe), encoding="utf-8")
    model.config.use_cache = False
    embedding: Any = model.get_input_embeddings()
    embedding.padding_idx = None  # pad may be end-of-turn, which has to learn
    trainer = SumTrainer(
        model, tokenizer, objective, data, config, out, seed, epoch_examples, label
    )
    progress = trainer.run()
    model.config.use_cache = True
    return progress


def write_summary(file: Path, progress: Progress) -> None:
    """Write ``training.json``, whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    with models.writing(file.parent):
        new.write_text(json.dumps(progress.summary(), indent=2) + "\n", encoding="utf-8")
        os.replace(new, file)


def _parameter_dtype(config: Training) -> str:
    """bfloat16 is autocast over float32 parameters."""
    return "float64" if config.dtype == "float64" else "float32"


__all__ = ["TrainingError", "train_variant"]
