"""Fixtures around the tiny model, tokenizer and data of ``tiny_training``."""

import pytest
import torch
from tiny_training import build_model, build_tokenizer, write_rows

from mars.models import save_checkpoint


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def model():
    return build_model()


@pytest.fixture
def base(tmp_path):
    """A base checkpoint folder."""
    folder = tmp_path / "base"
    save_checkpoint(build_model(dtype=torch.float32), build_tokenizer(), folder, {})
    return folder


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl")
