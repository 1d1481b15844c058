"""Released checkpoints, which name a type and code of their own, are read as what they are."""

from __future__ import annotations

import json

import pytest
import torch
from released_checkpoints import MASK, lay_out
from transformers import AutoModelForCausalLM, AutoTokenizer

from mars import models
from mars.config import Decoding
from mars.decoding import Request, make_decoder
from mars.models import CheckpointError

IDS = torch.tensor([[0, 5, 6, 2, 1, 9]])


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_the_weights_are_read_as_plain_and_no_code_is_run(tmp_path, kind):
    made = lay_out(tmp_path / "c", kind)
    before = {f.name: f.read_bytes() for f in (tmp_path / "c").iterdir()}
    model, tokenizer = models.load_model(tmp_path / "c"), models.load_tokenizer(tmp_path / "c")
    assert type(model) is type(made)
    assert torch.equal(model(IDS).logits, made(IDS).logits)
    assert tokenizer("w5 w6 <end>")["input_ids"] == [5, 6, 2]
    assert {f.name: f.read_bytes() for f in (tmp_path / "c").iterdir()} == before


@pytest.mark.parametrize("named", ["Qwen2Tokenizer", "A2DTokenizer"])
def test_the_tokenizer_may_name_any_class(tmp_path, named):
    lay_out(tmp_path / "c")
    file = tmp_path / "c" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": named}))
    tokenizer = models.load_tokenizer(tmp_path / "c")
    assert tokenizer.convert_tokens_to_ids(MASK) == 41
    assert tokenizer.chat_template


def test_its_mask_token_is_used(tmp_path):
    lay_out(tmp_path / "c")
    model, tokenizer = models.load_model(tmp_path / "c"), models.load_tokenizer(tmp_path / "c")
    # spare rows there are, but the model was trained with this one
    assert models.highest_id(tokenizer) + 1 < model.get_input_embeddings().num_embeddings
    assert models.mask_token_id(model, tokenizer) == tokenizer.convert_tokens_to_ids(MASK)
    assert model.config.mask_token_source == f"token {MASK}"


def test_what_is_trained_from_it_is_plain(tmp_path):
    lay_out(tmp_path / "c")
    model, tokenizer = models.load_model(tmp_path / "c"), models.load_tokenizer(tmp_path / "c")
    mask = models.mask_token_id(model, tokenizer)
    models.save_checkpoint(model, tokenizer, tmp_path / "new", {})
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert torch.equal(plain(IDS).logits, model(IDS).logits)
    read = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert read.chat_template == tokenizer.chat_template
    assert plain.config.mask_token_id == mask
    record = models.checkpoint_record(tmp_path / "new")
    assert (record["mask_token_id"], record["mask_token_source"]) == (mask, f"token {MASK}")


def test_it_decodes_as_the_plain_model_does(tmp_path):
    made = lay_out(tmp_path / "c")
    read, tokenizer = models.load_model(tmp_path / "c"), models.load_tokenizer(tmp_path / "c")
    found = [
        make_decoder(
            model, tokenizer, Decoding(decoder="mars", block_size=4, tau=0.3), mask_id=41
        ).generate([Request((0, 5, 6, 2, 1), 12)])[0]
        for model in (made, read)
    ]
    assert found[0].ids == found[1].ids
    assert found[0].accepted == found[1].accepted


def test_an_unknown_type_is_refused_in_one_line(tmp_path):
    lay_out(tmp_path / "c")
    file = tmp_path / "c" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "a2d-mamba9"}))
    for load in (models.load_model, models.load_tokenizer):
        with pytest.raises(CheckpointError, match="'a2d-mamba9' is none that transformers knows"):
            load(tmp_path / "c")
