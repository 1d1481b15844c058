"""Pretraining of the toy base checkpoints from a recipe file.

A recipe (``mars/embedded/checkpoints/<name>.yaml``) is everything that shapes the result: model
shape, number of conversations, optimisation, seed. Conversations are drawn as the run goes, so
memory does not grow with their number, and a stopped run goes on from its newest checkpoint.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from pydantic import Field, ValidationError
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, set_seed
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars import models
from mars.config import ROUNDING, ConfigError, Section, Training
from mars.data import Encoded, encode_all, end_of_turn_id
from mars.training.objectives import Setup, make_objective
from mars.training.objectives.base import Key
from mars.training.run import check_context, fit, parameter_dtype, with_precision
from mars.training.steps import Order

log = logging.getLogger(__name__)

_CHUNK = 1024
"""Conversations drawn and tokenised together."""


class Shape(Section):
    """The shape of a Qwen2 model."""

    hidden_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    max_position_embeddings: int = Field(256, ge=8)
    initializer_range: float = Field(0.02, gt=0, description="deviation of the first weights")


class Recipe(Section):
    """How a base checkpoint is made."""

    model: Shape
    examples: int = Field(ge=1, description="conversations of the pretraining corpus, each once")
    max_length: int = Field(128, ge=8)
    loss: Literal["response", "all"] = Field("response", description="tokens with loss")
    seed: int = Field(0, ge=0)
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="of the saved weights")
    training: Training


def load_recipe(file: Path) -> Recipe:
    """Read a recipe. Raises ConfigError, one line naming file and key."""
    try:
        return Recipe.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        names = ", ".join(sorted(p.stem for p in file.parent.glob("*.yaml"))) or "none"
        raise ConfigError(f"{file}: no such recipe; recipes here: {names}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{file}: {key}: {first['msg']}") from None


def pretrain(name: str, out: Path | None = None, recipe: Recipe | None = None) -> Path:
    """Train the base checkpoint ``name`` and return its folder.

    Args:
        name: ``toy-s``, ``toy-m``, or the path of a recipe file.
        out: the checkpoint folder; default: beside the recipe.
        recipe: used instead of the file.

    The trainer's state lives in ``<out>.training`` until the checkpoint is written. A finished
    checkpoint of the same recipe is left as it is.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else models.EMBEDDED / f"{name}.yaml"
    recipe = recipe or load_recipe(file)
    recipe = recipe.model_copy(update={"training": with_precision(recipe.training)})
    folder = Path(out) if out is not None else file.with_suffix("")
    resolved = recipe.model_dump(mode="json")
    if _is_done(folder, resolved):
        log.info("%s: already made with this recipe", folder)
        return folder

    from mars.embedded.tokenizer import build_tokenizer

    torch.set_num_threads(recipe.training.threads)
    tokenizer = build_tokenizer()
    model = build_model(recipe, tokenizer).to(getattr(torch, parameter_dtype(recipe.training)))
    end = end_of_turn_id(tokenizer)
    objective = make_objective(
        "ar_sft",
        Setup(
            block_size=1,
            ar_weight=1.0,
            alignment="decoder",
            mask_id=models.mask_token_id(model, tokenizer),
            end_id=end,
            pad_id=end if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
            seed=recipe.seed,
        ),
    )
    check_context(model, objective, recipe.max_length, file)
    work = folder.with_name(f"{folder.name}.training")
    total = recipe.examples * recipe.training.epochs
    trainer = fit(
        model, tokenizer, objective, Order(_corpus(recipe, tokenizer), total), recipe.training,
        work, recipe.seed, _what_counts(resolved),
        epoch_examples=recipe.examples, label=f"pretrain {folder.name}",
    )  # fmt: skip
    trained = trainer.whole_model()
    if trained is not None:
        trained = trained.to(getattr(torch, recipe.dtype))
        models.save_checkpoint(trained, tokenizer, folder, resolved)
        shutil.rmtree(work, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return folder


def build_model(recipe: Recipe, tokenizer: Tokenizer) -> PreTrainedModel:
    """A fresh Qwen2 model with at least one spare embedding row, drawn from the recipe's seed."""
    set_seed(recipe.seed)
    rows = math.ceil((models.highest_id(tokenizer) + 2) / 64) * 64
    config = Qwen2Config(
        vocab_size=rows,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **recipe.model.model_dump(),
    )
    return Qwen2ForCausalLM(config)


def _corpus(recipe: Recipe, tokenizer: Tokenizer) -> Callable[[int], tuple[Encoded, Key]]:
    """Conversation ``i`` of the pretraining corpus, drawn a chunk at a time."""
    from mars.embedded import corpus

    held: tuple[int, list[Encoded]] = (-1, [])

    def fetch(index: int) -> tuple[Encoded, Key]:
        nonlocal held
        epoch, example = divmod(index, recipe.examples)
        number, place = divmod(example, _CHUNK)
        if held[0] != number:
            count = min(_CHUNK, recipe.examples - number * _CHUNK)
            rows = corpus.conversations("pretrain", count, recipe.seed, start=number * _CHUNK)
            found = encode_all(tokenizer, [row["messages"] for row in rows], recipe.max_length)
            if recipe.loss == "all":
                found = [
                    Encoded(e.ids, torch.ones_like(e.response), e.turn, e.ended) for e in found
                ]
            held = (number, by_length(found, recipe.training.batch_size, recipe.seed + number))
        return held[1][place], (epoch, example)

    return fetch


def by_length(examples: list[Encoded], batch_size: int, seed: int) -> list[Encoded]:
    """Examples in batches of similar length, the batches in a seeded random order.

    A short last batch stays last, so that every other batch is whole.
    """
    ordered = sorted(examples, key=len)
    whole = len(ordered) // batch_size
    order = np.random.default_rng(seed).permutation(whole)
    picked = [e for b in order for e in ordered[b * batch_size : (b + 1) * batch_size]]
    return picked + ordered[whole * batch_size :]


def _is_done(folder: Path, recipe: dict[str, object]) -> bool:
    try:
        record = models.checkpoint_record(models.resolve_checkpoint(folder))
    except models.CheckpointError:
        return False
    return _what_counts(record.get("recipe")) == _what_counts(recipe)


def _what_counts(recipe: Any) -> Any:
    """A recipe without what changes results by rounding at most; older ones split by rows."""
    if not isinstance(recipe, dict):
        return recipe
    without = {*ROUNDING, "micro_batch_size"}
    training = {k: v for k, v in recipe.get("training", {}).items() if k not in without}
    return {**recipe, "training": training}
