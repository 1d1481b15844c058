"""`make random MODEL=qwen2.5-7b`: a checkpoint with a model's architecture and random weights.

For speed alone: what a forward costs does not depend on the weights, and acceptance is replayed.
The tokenizer is that of the project's own base models; its ids are among the model's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mars.models import CheckpointError, load_tokenizer, resolve_checkpoint, save_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SEED = 0

# Qwen2.5: from the published config.json of the Instruct models. llama-512x8: a small one of our
# own, 42M weights, for measuring training on a CPU.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
    "llama-512x8": {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "tie_word_embeddings": True,
    },
}


def main() -> None:
    """Make the checkpoint, unless it is there."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in ARCHITECTURES:
        sys.exit(f"make random: MODEL is {name!r}; choose from {', '.join(ARCHITECTURES)}")
    folder = Path("results/checkpoints", f"random-{name}")
    try:
        make(ROOT / folder, name)
    except CheckpointError as error:
        sys.exit(f"make random: {error}")
    print(f"make random: {folder}")


def make(folder: Path, name: str) -> None:
    """Draw bfloat16 weights of an architecture and save them; nothing where it is there, whole."""
    try:
        resolve_checkpoint(folder)
    except CheckpointError:
        torch.manual_seed(SEED)
        config = AutoConfig.for_model(
            **ARCHITECTURES[name],
            max_position_embeddings=32_768,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            dtype=torch.bfloat16,
        )
        torch.set_default_dtype(torch.bfloat16)  # half the memory while they are drawn
        try:
            model = AutoModelForCausalLM.from_config(config)
        finally:
            torch.set_default_dtype(torch.float32)
        recipe = {"architecture": name, "weights": f"random, seed {SEED}: for speed alone"}
        save_checkpoint(model, load_tokenizer("embedded:toy-m"), folder, recipe)


if __name__ == "__main__":
    main()
