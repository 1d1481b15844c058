"""Base checkpoints from a recipe: resumable, reproducible, readable by plain transformers."""

import os
import signal

import pytest
import torch
from tiny_training import at_step
from transformers import AutoModelForCausalLM

from mars import models
from mars.config import ConfigError
from mars.training import pretrain as module
from mars.training.pretrain import Recipe, load_recipe, pretrain
from mars.training.trainer import SumTrainer

RECIPE = {
    "model": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 24,
    },
    "examples": 70,
    "training": {"batch_size": 16, "save_steps": 1},
}  # fmt: skip


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_a_stopped_run_gives_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 32)  # several chunks, the last one short
    recipe = Recipe.model_validate(RECIPE)
    whole = pretrain("toy-s", tmp_path / "whole", recipe)

    original = SumTrainer.end_of_step

    def stop(self, number):
        original(self, number)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(SumTrainer, "end_of_step", stop)
        with pytest.raises(SystemExit):
            pretrain("toy-s", tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.training" / "trainer" / "checkpoint-3").is_dir()
    told = recipe.training.model_copy(update={"logging_steps": 1})  # which shapes no model
    again, done = recipe.model_copy(update={"training": told}), []
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: done.append("again"))
        assert pretrain("toy-s", tmp_path / "out", again) == tmp_path / "out"
    assert not done
    assert weights(tmp_path / "out") == weights(whole)
    assert not (tmp_path / "out.training").exists()

    before = (whole / "model.safetensors").stat().st_mtime_ns
    pretrain("toy-s", whole, recipe)  # nothing to do
    assert (whole / "model.safetensors").stat().st_mtime_ns == before
    other = recipe.model_copy(update={"seed": 1})
    assert weights(pretrain("toy-s", tmp_path / "other", other)) != weights(whole)

    model = AutoModelForCausalLM.from_pretrained(whole)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert models.load_model(whole).dtype == torch.float32
    tokenizer = models.load_tokenizer(whole)
    record = models.checkpoint_record(whole)
    assert record["recipe"] == recipe.model_dump(mode="json")
    spare = record["mask_token_id"]
    assert models.highest_id(tokenizer) < spare < model.get_input_embeddings().num_embeddings


@pytest.mark.parametrize("asked", ["float64", "auto"])
def test_it_computes_as_its_recipe_says(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(models, "choose_dtype", lambda dtype, _: dtype.replace("auto", "bfloat16"))
    seen, original = set(), SumTrainer.end_of_step

    def told(self, number):
        seen.add((next(self.model.parameters()).dtype, self.args.bf16))
        original(self, number)

    monkeypatch.setattr(SumTrainer, "end_of_step", told)
    recipe = {**RECIPE, "training": {"batch_size": 35, "dtype": asked}}
    pretrain("toy-s", tmp_path / "out", Recipe.model_validate(recipe))
    assert seen == {(torch.float64, False) if asked == "float64" else (torch.float32, True)}


def test_loss_on_all_tokens_or_on_the_response():
    from mars.embedded.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    for loss in ("response", "all"):
        recipe = Recipe.model_validate({**RECIPE, "loss": loss})
        fetch = module._corpus(recipe, tokenizer)
        found = [fetch(i)[0] for i in range(5)]
        assert all(bool(e.response.all()) == (loss == "all") for e in found)
        assert fetch(3)[1] == (0, 3)


def test_the_shipped_recipes_are_whole():
    sizes = []
    from mars.embedded.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    for name in ("toy-s", "toy-m"):
        recipe = load_recipe(models.EMBEDDED / f"{name}.yaml")
        model = module.build_model(recipe, tokenizer)
        sizes.append(sum(p.numel() for p in model.parameters()))
    assert sizes[0] < 0.8e6 < sizes[1] < 2.5e6


@pytest.mark.parametrize("name", ["toy-s", "toy-m"])
def test_a_shipped_recipe_still_runs_and_its_checkpoint_counts_as_made(name, tmp_path):
    """A few steps of it; the committed checkpoint, made with another packing, is left alone."""
    recipe = load_recipe(models.EMBEDDED / f"{name}.yaml")
    assert module._is_done(models.EMBEDDED / name, recipe.model_dump(mode="json"))
    changed = recipe.model_copy(update={"seed": recipe.seed + 1})
    assert not module._is_done(models.EMBEDDED / name, changed.model_dump(mode="json"))
    short = recipe.model_copy(update={"examples": 64})
    made = pretrain(name, tmp_path / "out", short)
    rows = models.checkpoint_record(made)["recipe"]
    assert rows["examples"] == 64


def test_faults_of_a_recipe_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"toy-x.yaml: no such recipe; .* toy-m, toy-s"):
        pretrain("toy-x", tmp_path / "out")
    file = tmp_path / "r.yaml"
    file.write_text("model: {hidden_size: 0}\n")
    with pytest.raises(ConfigError, match=r"r.yaml: model.hidden_size"):
        pretrain(str(file), tmp_path / "out")
    long = Recipe.model_validate({**RECIPE, "max_length": 999})
    with pytest.raises(ValueError, match="context is 256"):
        pretrain("toy-s", tmp_path / "out", long)
    assert not (tmp_path / "out").exists()
