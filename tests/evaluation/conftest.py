"""A model-free decoder and a study of the toy benchmarks, small enough for a desk."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import nltk
import pytest
import torch
import yaml
from transformers import Qwen2Config, Qwen2ForCausalLM

from mars.config import Study, parse_study
from mars.config.references import OFFLINE
from mars.decoding import Generation, Request
from mars.embedded.tokenizer import build_tokenizer
from mars.evaluation import lm_eval_model
from mars.evaluation.real import gpqa
from mars.evaluation.source import Source
from mars.models import save_checkpoint

from .six import byte_tokenizer, make_root

REPOSITORY = Path(__file__).parents[2]
TOY = ("toy_ifeval", "toy_bbh", "toy_mmlu_pro", "toy_gpqa", "toy_gsm8k", "toy_humaneval")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch: pytest.MonkeyPatch, caches: Path) -> None:
    """Datasets are cached in a folder of the tests; what data_root switches off comes back on."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", caches)
    for module, switches in OFFLINE.items():
        for switch in switches:
            monkeypatch.setattr(f"{module}.{switch}", False)
            monkeypatch.setenv(switch, "")  # so that it is put back as it was
            monkeypatch.delenv(switch)
    monkeypatch.delenv("NLTK_DATA", raising=False)
    monkeypatch.setattr(nltk.data, "path", list(nltk.data.path))


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Whoever asks for a host or a connection gets none; that nobody does is checked."""
    asked: list[Any] = []

    def forbidden(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        raise OSError("tests have no network")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(socket.socket, "connect_ex", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    yield asked
    assert not asked


@pytest.fixture(scope="session")
def made_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data_root with a few documents of each of the six benchmarks."""
    return make_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def root(made_root: Path, tmp_path: Path) -> Path:
    """A data_root of one's own, to break."""
    gpqa._rows.cache_clear()
    return Path(shutil.copytree(made_root, tmp_path / "data"))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()


@dataclass
class FakeDecoders:
    """Stands in for ``make_decoder``: answers by a function of the prompt's text, and counts."""

    tokenizer: Any
    answer: Callable[[str], str] = lambda prompt: prompt[-20:]
    settings: list[Any] = field(default_factory=list)
    batches: list[list[Request]] = field(default_factory=list)
    die_after: int | None = None

    @property
    def asked(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def make(self, model: Any, tokenizer: Any, settings: Any) -> Any:
        self.settings.append(settings)
        return self

    def stream(
        self, requests: Sequence[Request], slots: int | None = None
    ) -> Iterator[tuple[int, Generation]]:
        """Answers ``slots`` at a time, the last of them first, as rows finish in any order."""
        slots = slots or len(requests)
        for first in range(0, len(requests), slots):
            if self.die_after is not None and len(self.batches) >= self.die_after:
                raise KeyboardInterrupt
            self.batches.append(list(requests[first : first + slots]))
            for index in reversed(range(first, min(first + slots, len(requests)))):
                yield index, self._one(requests[index])

    def _one(self, request: Request) -> Generation:
        text = self.answer(self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False))
        finish: Any = "end_of_turn"
        for stop in request.stop:
            if stop in text:
                text, finish = text[: text.index(stop) + len(stop)], "stop"
        ids = self.tokenizer.encode(text)
        if finish == "end_of_turn":
            ids.append(self.tokenizer.eos_token_id)
        if len(ids) > request.max_new_tokens:
            ids, finish = ids[: request.max_new_tokens], "budget"
        pairs = [2] * (len(ids) // 2) + [1] * (len(ids) % 2)
        return Generation(ids, pairs, finish, [0.987654321] * len(ids))


@pytest.fixture
def fake(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> FakeDecoders:
    decoders = FakeDecoders(tokenizer)
    monkeypatch.setattr(lm_eval_model, "make_decoder", decoders.make)
    return decoders


@pytest.fixture
def source(tokenizer: Any) -> Source:
    return Source(tokenizer, checkpoint="c0ffee", context=256, dtype="float32", load=lambda: None)


@pytest.fixture
def study() -> Study:
    """The embedded study, with few documents and thresholds."""
    raw = yaml.safe_load((REPOSITORY / "config" / "embedded.yaml").read_text())
    raw["study"] = "test"
    raw["evaluation"] |= {
        "limit": 6,
        "batch_size": 4,
        "sweep": "none",
        "acceptance": None,
        "jacobi": None,
    }
    return parse_study(raw)


@pytest.fixture(scope="session")
def checkpoint(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tokenizer, 256, tmp_path_factory)


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a token a byte and room for the real benchmarks' prompts."""
    return random_checkpoint(byte_tokenizer(), 16_384, tmp_path_factory)


def random_checkpoint(
    tokenizer: Any, positions: int, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    save_checkpoint(Qwen2ForCausalLM(config), tokenizer, folder, {})
    return folder
