"""Tiny checkpoints laid out as the paper's released ones: a type and code of their own."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_training import VOCAB, build_model, build_tokenizer
from transformers import PreTrainedModel

from mars import models

MASK = "<|mask|>"


def lay_out(folder: Path, kind: str = "qwen2", seed: int = 0) -> PreTrainedModel:
    """Write a checkpoint whose code must not be imported; returns the plain model it is."""
    model, tokenizer = build_model(kind, torch.float32, seed), build_tokenizer()
    tokenizer.add_special_tokens({"mask_token": MASK})
    models.save_checkpoint(model, tokenizer, folder, {})
    (folder / "mars.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": f"a2d-{kind}",
        "architectures": [f"A2D{kind.title()}LMHeadModel"],
        "auto_map": {
            "AutoConfig": "modeling.A2DConfig",
            "AutoModel": "modeling.A2DLMHeadModel",
            "AutoModelForCausalLM": "modeling.A2DLMHeadModel",
            "AutoModelForMaskedLM": "modeling.A2DLMHeadModel",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told |= {"auto_map": {"AutoTokenizer": ["modeling.A2DTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    for name in ("modeling.py", "configuration.py"):
        (folder / name).write_text("raise SystemExit('a checkpoint\\'s code was run')\n")
    return model


__all__ = ["MASK", "VOCAB", "lay_out"]
