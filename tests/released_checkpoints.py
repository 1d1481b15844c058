"""Tiny checkpoints laid out as the paper's released ones: a type and code of their own."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_training import build_model, build_tokenizer
from transformers import PreTrainedModel

from mars import models

MASK = "<|mask|>"
THETA = 50.0
"""Of rotary embeddings; not what a configuration that lacks it would have."""


def lay_out(folder: Path, kind: str = "qwen2", seed: int = 0) -> PreTrainedModel:
    """Write a checkpoint whose code must not be imported; returns the plain model it is."""
    made, tokenizer = build_model(kind, torch.float32, seed), build_tokenizer()
    made.config.rope_parameters = {"rope_type": "default", "rope_theta": THETA}
    model = type(made)(made.config).eval()
    tokenizer.add_special_tokens({"mask_token": MASK})
    models.save_checkpoint(model, tokenizer, folder, {})
    (folder / "mars.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]  # they were written by transformers 4
    config |= {
        "rope_theta": THETA,
        "torch_dtype": config.pop("dtype"),
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
