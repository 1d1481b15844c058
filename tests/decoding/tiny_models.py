"""Models small enough to compare exactly: random ones in float64, and one that reads a script."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mars.config import Decoding
from mars.decoding import Decoder, Generation, Request, make_decoder

VOCABULARY, END, MASK, POSITIONS = 29, 1, 28, 96
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
ARCHITECTURES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),
}


@functools.cache
def random_model(architecture: str = "qwen2", sharpness: float = 2.5, seed: int = 0) -> Any:
    """A random model in float64 whose head is scaled, so that it is often confident."""
    torch.manual_seed(seed)
    config_class, model_class, extra = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        initializer_range=0.3,  # at the usual 0.02 a random model hardly looks at what it reads
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
        **extra,
    )
    model = model_class(config).double().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness)
        model.lm_head.weight[END] *= 1.3  # so that some rows end before their budget
        model.lm_head.weight[MASK] *= 2.0  # and [MASK] often has the highest logit
    return model


def decode(
    requests: list[Request], model: Any = None, tokenizer: Any = None, **settings: Any
) -> list[Generation]:
    """Decode with some settings; ``mask_id`` and ``end_ids`` go to the maker."""
    return make(model, tokenizer, **settings).generate(requests)


def make(model: Any = None, tokenizer: Any = None, **settings: Any) -> Decoder:
    """A decoder with some settings, on the random Qwen2 model unless told otherwise."""
    maker = {
        name: settings.pop(name) for name in ("mask_id", "end_ids", "generator") if name in settings
    }
    maker = {"mask_id": MASK, "end_ids": (END,)} | maker
    model = random_model() if model is None else model
    return make_decoder(model, tokenizer, Decoding(**settings), **maker)


def outline(generations: list[Generation]) -> list[tuple[list[int], list[int], str]]:
    """What must be equal exactly."""
    return [(g.ids, g.accepted, g.finish) for g in generations]


class Scripted(torch.nn.Module):
    """A "model" whose logits at a position are a row of a table, whatever it reads there.

    ``script[i]`` is (token, probability) predicted for position i + 1; what probability is left
    goes to token 0.
    """

    def __init__(self, script: list[tuple[int, float]], vocabulary: int = 12) -> None:
        super().__init__()
        table = torch.full((len(script) + 16, vocabulary), -1e9, dtype=torch.float64)
        table[:, 0] = 0.0
        for position, (token, probability) in enumerate(script):
            table[position, token] = torch.tensor(probability, dtype=torch.float64).log()
            table[position, 0] = torch.tensor(1 - probability, dtype=torch.float64).log()
        self.table = table
        self.windows: list[tuple[int, int]] = []
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(num_hidden_layers=0, max_position_embeddings=64)

    @property
    def base_model(self) -> Scripted:
        return self

    def get_output_embeddings(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        use_cache: bool,
        window: Any,
        cache: Any = None,
    ) -> SimpleNamespace:
        self.windows.append(tuple(input_ids.shape))
        return SimpleNamespace(last_hidden_state=self.table[position_ids])


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, a few longer tokens, and two special tokens; the end-of-turn is also the pad."""
    vocabulary = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("E", "N"), ("Q", ":"), ("o", "f"), ("Ċ", "Ċ"), ("D", "Ċ"), ("Ġ", "x")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    core = Tokenizer(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")
