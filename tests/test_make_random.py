"""A checkpoint of random weights: loads as any other, and its speed studies are whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

import make_random  # noqa: E402

from mars import models  # noqa: E402
from mars.config import load_study  # noqa: E402

TINY = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 700,
    "tie_word_embeddings": True,
}


def test_it_is_a_checkpoint_of_that_architecture(tmp_path, monkeypatch):
    monkeypatch.setitem(make_random.ARCHITECTURES, "tiny", TINY)
    make_random.make(tmp_path / "made", "tiny")
    model = models.load_model(tmp_path / "made")
    tokenizer = models.load_tokenizer(tmp_path / "made")
    assert {name: getattr(model.config, name) for name in TINY} == TINY
    assert models.mask_token_id(model, tokenizer) >= len(tokenizer)  # a spare row
    before = models.checkpoint_hash(tmp_path / "made")
    make_random.make(tmp_path / "made", "tiny")
    assert models.checkpoint_hash(tmp_path / "made") == before


def test_an_unknown_model_is_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_random.py", "qwen"])
    with pytest.raises(SystemExit, match=r"MODEL is 'qwen'; choose from qwen2.5-0.5b"):
        make_random.main()


@pytest.mark.parametrize("name", [n for n in make_random.ARCHITECTURES if "qwen" in n])
def test_each_has_its_speed_study(name):
    study = load_study(ROOT / "config" / f"{name.replace('2.5-', '').replace('.', '')}_speed.yaml")
    assert study.scales[name].base == f"results/checkpoints/random-{name}"
    assert study.throughput is not None
    assert study.throughput.replay is not None
    assert study.throughput.replay.tokens_per_forward == 1.79  # the paper's, on GSM8K
