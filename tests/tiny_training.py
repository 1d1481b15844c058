"""A tiny model, a tiny tokenizer whose pad *is* its end-of-turn, and small examples."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mars.config import parse_study
from mars.data import Encoded
from mars.training.objectives import Setup, make_objective
from mars.training.trainer import SumTrainer

VOCAB, END, MASK = 50, 2, 49


def build_model(kind: str = "qwen2", dtype: torch.dtype = torch.float64, seed: int = 0):
    """Two layers, grouped queries, initialised widely enough that everything matters."""
    torch.manual_seed(seed)
    config, model = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    shape = config(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=64,
        initializer_range=0.3, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=END, pad_token_id=END, attn_implementation="sdpa",
    )  # fmt: skip
    return model(shape).to(dtype).eval()


def build_tokenizer():
    """Words w3 … w40; ``<end>`` ends a turn, pads and is the end of sequence."""
    words = ["<user>", "<assistant>", "<end>", *(f"w{i}" for i in range(3, 41))]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<end>",
        pad_token="<end>",
        unk_token="w3",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=(
            "{% for m in messages %}{{ '<' + m.role + '> ' }}{% if m.role == 'assistant' %}"
            "{% generation %}{{ m.content + ' <end>' }}{% endgeneration %}{% else %}"
            "{{ m.content + ' <end>' }}{% endif %}{{ ' ' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
        ),
    )


def example(*spans: int, ended: bool = True, start: int = 5) -> Encoded:
    """example(3, 5): three prompt tokens, then a response of five with its end-of-turn."""
    turn: list[int] = []
    for i, count in enumerate(spans):
        turn += [i // 2 if i % 2 else -1] * count
    turns = torch.tensor(turn)
    ids = 3 + (torch.arange(len(turn)) * 7 + start) % 40
    last = torch.ones(len(turn), dtype=torch.bool)
    last[:-1] = turns[1:] != turns[:-1]
    if not ended:
        last[-1] = False
    ids[last & (turns >= 0)] = END
    return Encoded(ids, turns >= 0, turns, ended)


def objective(name: str, **settings):
    """An objective for the tiny model."""
    defaults = {
        "block_size": 4, "ar_weight": 1.0, "alignment": "decoder",
        "mask_id": MASK, "end_id": END, "pad_id": END, "seed": 0,
    }  # fmt: skip
    return make_objective(name, Setup(**{**defaults, **settings}))


EXAMPLES = [
    example(3, 9),
    example(5, 1, start=8),
    example(2, 4, 3, 7, start=1),
    example(4, 2),
    example(13, 6),
]
KEYS = [(0, i) for i in range(len(EXAMPLES))]


def write_rows(file: Path) -> Path:
    """A JSONL file of 60 conversations of many lengths, some of two turns."""
    with file.open("w") as stream:
        for i in range(60):
            words = [f"w{3 + (i * 5 + k) % 38}" for k in range(20)]
            messages = [
                {"role": "user", "content": " ".join(words[: 2 + i % 7])},
                {"role": "assistant", "content": " ".join(words[3 : 4 + i % 11])},
            ] * (1 + i % 5 // 4)
            stream.write(json.dumps({"messages": messages}) + "\n")
    return file


def build_study(rows: Path, **training):
    """A study over those rows: 30 conversations a stage."""
    defaults = {
        "batch_size": 8,
        "row_length": 40,
        "micro_batch_tokens": 80,
        "save_steps": 2,
        "logging_steps": 1,
    }
    return parse_study(
        {
            "study": "tiny",
            "scales": {"s": {"base": "unused"}},
            "data": {
                "source": str(rows), "stage1_examples": 30, "stage2_examples": 30,
                "max_length": 40,
            },
            "training": {**defaults, **training},
            "variants": {
                "base": {},
                "ar_sft": {"objective": "ar_sft", "parent": "base", "stages": [1]},
                "mars": {
                    "objective": "mars", "parent": "ar_sft", "stages": [2], "block_size": 4,
                },
                "diffusion": {
                    "objective": "block_diffusion", "parent": "ar_sft", "stages": [2],
                    "block_size": 4, "alignment": "stream",
                },
            },
            "evaluation": {"benchmarks": {"b": {"column": "B", "metric": "m"}}, "panels": []},
        }
    )  # fmt: skip


def weights(out):
    return (out / "model" / "model.safetensors").read_bytes()


def curve(out):
    """training.csv without its clock."""
    with (out / "training.csv").open() as stream:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)]


def at_step(monkeypatch, step, act):
    """Do something just before the weights change for the given step (counted from 0)."""
    original = SumTrainer.end_of_step

    def patched(self, number):
        original(self, number)
        if number == step:
            act()

    monkeypatch.setattr(SumTrainer, "end_of_step", patched)
