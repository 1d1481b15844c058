"""Checkpoints: what can be wrong with one, where [MASK] goes, and saving whole or not at all."""

import json
import logging

import pytest
import torch
from tiny_training import build_model, build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mars import models
from mars.models import CheckpointError, devices, loading, mask_token


@pytest.fixture
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def folder(tmp_path, tokenizer):
    models.save_checkpoint(build_model(dtype=torch.float32), tokenizer, tmp_path / "c", {"a": 1})
    return tmp_path / "c"


def refused(folder, match, load=models.resolve_checkpoint):
    with pytest.raises(CheckpointError, match=match) as error:
        load(folder)
    text = str(error.value)
    assert "\n" not in text
    assert str(folder) in text or "embedded" in text


def test_round_trip(folder, tokenizer):
    assert models.resolve_checkpoint(str(folder)) == folder
    model = models.load_model(folder, "float32")
    assert not model.training
    assert model.config._attn_implementation == "sdpa"
    for name, value in build_model(dtype=torch.float32).state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert models.load_model(folder, torch.bfloat16).dtype == torch.bfloat16
    ids = models.load_tokenizer(folder)("w5 w6 <end>")["input_ids"]
    assert ids == tokenizer("w5 w6 <end>")["input_ids"] == [5, 6, 2]
    assert models.checkpoint_record(folder)["recipe"] == {"a": 1}
    assert models.checkpoint_record(folder)["hash"] == models.checkpoint_hash(folder)


def test_plain_transformers_loads_the_model(folder):
    plain = AutoModelForCausalLM.from_pretrained(folder)
    ours = models.load_model(folder)
    ids = torch.tensor([[0, 5, 6, 2]])
    assert torch.equal(plain(ids).logits, ours(ids).logits)


def test_what_is_missing_is_named(folder, tmp_path):
    refused(tmp_path / "nowhere", "no such checkpoint folder; check the path")
    refused("embedded:toy-x", "mars pretrain toy-x")
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        kept = (folder / file).read_bytes()
        (folder / file).unlink()
        refused(folder, f"{file} is missing")
        (folder / file).write_bytes(kept)
    (folder / "config.json").write_text('{"model_type": "qw')
    refused(folder, "config.json: cannot be read")


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_half_written_weights(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, "model.safetensors: half-written")


def test_a_shard_that_is_missing(folder):
    index = {"weight_map": {"a": "model-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model-00001.safetensors is missing")


@pytest.mark.parametrize("held", [{"weight_map": ["model.safetensors"]}, {}])
def test_an_index_without_a_map_of_shards(folder, held):
    (folder / "model.safetensors.index.json").write_text(json.dumps(held))
    refused(folder, "model.safetensors.index.json: weight_map is no mapping")


def test_weights_of_an_unknown_dtype(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F99"', 1))
    refused(folder, "transformers cannot load it: .*unknown variant `F99`", models.load_model)


def test_settings_of_a_wrong_kind(folder):
    config = json.loads((folder / "config.json").read_text())
    for key, value in (("hidden_size", "wide"), ("vocab_size", "many")):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        refused(folder, f"{key}.*{value}", models.load_model)
    refused(folder, "config.json: vocab_size is 'many' and no number", models.load_tokenizer)


def test_a_tokenizer_of_another_checkpoint(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    refused(folder, "41 ids and the embedding 20 rows", models.load_tokenizer)


def test_a_checkpoint_without_a_chat_template(folder):
    (folder / "chat_template.jinja").unlink()
    refused(folder, "no chat template; use an instruct checkpoint", models.load_tokenizer)


# ------------------------------------------------------------------------------- the mask token


def test_mask_takes_a_spare_row_and_keeps_it(folder):
    model, tok = models.load_model(folder), models.load_tokenizer(folder)
    rows = model.get_input_embeddings().num_embeddings
    assert models.mask_token_id(model, tok) == 41 == models.highest_id(tok) + 1
    models.save_checkpoint(model, tok, folder, {})
    again = models.load_model(folder)
    assert again.config.mask_token_id == 41
    again.config.mask_token_id = 7
    assert models.mask_token_id(again, tok) == 7  # a recorded one is kept
    assert again.get_input_embeddings().num_embeddings == rows


def test_mask_takes_a_reserved_token_where_no_row_is_spare(folder, caplog):
    model, tok = models.load_model(folder), models.load_tokenizer(folder)
    tok.add_tokens([f"<|reserved_{i}|>" for i in range(9)], special_tokens=True)
    assert models.highest_id(tok) + 1 == model.get_input_embeddings().num_embeddings
    assert tok.convert_ids_to_tokens(models.mask_token_id(model, tok)) == "<|reserved_0|>"
    assert not caplog.records


@pytest.mark.parametrize(
    "token", ["<unused7>", "[unused7]", "<|extra_7|>", ">>UNUSED_7<<", "<empty_output>"]
)
def test_a_word_of_that_name_is_not_a_reserved_token(folder, token):
    """Of Llama 3 " reserved" is an ordinary word, and of a lower id than any reserved token."""
    model, tok = models.load_model(folder), models.load_tokenizer(folder)
    words = ["\u0120reserved", "unused", "[reserved", "<empty_output>s", "reserved>"]
    tok.add_tokens([*words, "<unused>", "word0", "word1"])
    tok.add_tokens([token], special_tokens=True)  # comes before what is reserved by name alone
    assert models.highest_id(tok) + 1 == model.get_input_embeddings().num_embeddings
    assert tok.convert_ids_to_tokens(models.mask_token_id(model, tok)) == token


def test_mask_grows_the_table_only_at_need_and_says_so(folder, caplog):
    mask_token._warn_of_growth.cache_clear()
    tok = models.load_tokenizer(folder)
    tok.add_tokens([f"word{i}" for i in range(9)])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model = models.load_model(folder)
            assert models.mask_token_id(model, tok) == 50
    assert [r.message for r in caplog.records] == [
        "no spare embedding row for [MASK]: the table grows by one row to 51"
    ]
    table = model.get_input_embeddings().weight
    assert table.shape[0] == 51 == model.config.vocab_size
    assert torch.allclose(table[-1], table[:-1].mean(0))
    assert model.get_output_embeddings().weight is table
    models.save_checkpoint(model, tok, folder, {})
    assert models.checkpoint_record(folder)["mask_token_source"] == "new row"
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(plain.get_input_embeddings().weight, table)
    assert models.mask_token_id(plain, models.load_tokenizer(folder)) == 50


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_any_architecture_is_kept_plain_with_its_template(tmp_path, tokenizer, kind, tied):
    model = build_model(kind, torch.float32)
    model.config.tie_word_embeddings = tied
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 2)
    tokenizer.add_tokens([f"word{i}" for i in range(9)])
    assert models.mask_token_id(model, tokenizer) == 50  # a new row, in both tables
    models.save_checkpoint(model, tokenizer, tmp_path / "c", {})
    plain, read = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "c"),
        models.load_tokenizer(tmp_path / "c"),
    )
    ids = torch.tensor([[0, 5, 6, 2, 50]])
    assert type(plain) is type(model)
    assert torch.equal(plain(ids).logits, model(ids).logits)
    assert plain(ids).logits.shape[-1] == 51
    assert read.chat_template == tokenizer.chat_template
    assert "auto_map" not in json.loads((tmp_path / "c" / "config.json").read_text())


def test_a_recorded_mask_beyond_the_embedding_is_refused(folder):
    model, tok = models.load_model(folder), models.load_tokenizer(folder)
    model.config.mask_token_id = 50
    with pytest.raises(CheckpointError, match="is 50 and the embedding has 50 rows"):
        models.mask_token_id(model, tok)


# ------------------------------------------------------------------------------- what a machine can


@pytest.mark.parametrize(
    ("wanted", "device", "able", "found"),
    [
        ("auto", "cpu", True, "float32"),
        ("auto", "cuda", True, "bfloat16"),
        ("auto", "cuda", False, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"),
    ],
)
def test_precision_by_capability(monkeypatch, wanted, device, able, found):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: able)
    assert models.choose_dtype(wanted, device) == found


@pytest.mark.parametrize(
    ("named", "count", "gpus"),
    [
        (None, 2, ["0", "1"]),
        ("", 0, []),
        ("3,5", 2, ["3", "5"]),
        ("GPU-a, GPU-b", 2, ["GPU-a", "GPU-b"]),
        ("7", 0, []),
    ],
)
def test_the_gpus_of_this_process(monkeypatch, named, count, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert models.visible_gpus() == gpus


def test_a_model_larger_than_a_gpu_is_spread(folder, monkeypatch):
    held = sum(p.numel() for p in build_model(dtype=torch.float32).parameters())
    assert devices.weight_bytes(folder, torch.bfloat16) == 2 * held
    assert devices.weight_bytes(folder, torch.float32) == 4 * held
    card = type("Card", (), {"total_memory": 4 * held})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    for count, spread in ((1, False), (2, True)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert devices.spreads(folder, torch.float32, "cuda") is spread
        assert not devices.spreads(folder, torch.bfloat16, "cuda")
        assert not devices.spreads(folder, torch.float32, "cpu")


@pytest.mark.parametrize("step", ["to", "from_pretrained"])  # onto one GPU, over several
@pytest.mark.parametrize(("count", "dtype"), [(1, "float32"), (2, "bfloat16")])
def test_a_model_without_room_says_how_many_gpus_to_try(folder, monkeypatch, step, count, dtype):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    owner = PreTrainedModel if step == "to" else loading.AutoModelForCausalLM
    monkeypatch.setattr(owner, step, full)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(CheckpointError) as error:
        models.load_model(folder, dtype)
    line = str(error.value)
    assert "\n" not in line
    assert str(folder) in line
    assert f"set evaluation.gpus_per_process to {2 * count}" in line
    assert ("set training.dtype to bfloat16" in line) is (dtype == "float32")


# ------------------------------------------------------------------------------- wrong weights


def test_weights_of_another_shape_than_the_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 64}))
    told = r"embed_tokens.weight is of shape \(50, 16\) and config.json says \(64, 16\)"
    refused(folder, told, models.load_model)


def test_weights_that_lack_a_layer(folder):
    config = json.loads((folder / "config.json").read_text())
    layers = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps({**config, **layers}))
    refused(folder, r"its weights lack model.layers.2", models.load_model)


# ------------------------------------------------------------------------------- saving


def test_saving_replaces_whole_or_not_at_all(folder, tokenizer, monkeypatch):
    before = models.checkpoint_hash(folder)
    other = build_model(dtype=torch.float32, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "save_pretrained", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            models.save_checkpoint(other, tokenizer, folder, {})
    assert models.checkpoint_hash(folder) == before
    models.save_checkpoint(other, tokenizer, folder, {})
    assert models.checkpoint_hash(folder) != before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # nothing left over


def test_the_hash_is_of_what_computes(folder):
    before = models.checkpoint_hash(folder)
    (folder / "README.md").write_text("hello")
    assert models.checkpoint_hash(folder) == before
    (folder / "chat_template.jinja").write_text("x")
    assert models.checkpoint_hash(folder) != before


def test_what_ends_a_turn_is_in_the_hash(folder):
    before = models.checkpoint_hash(folder)
    file = folder / "generation_config.json"
    told = json.loads(file.read_text())
    told.pop("_from_model_config", None)
    file.write_text(json.dumps(told | {"transformers_version": "0", "temperature": 0.7}))
    assert models.checkpoint_hash(folder) == before  # which shapes nothing here
    file.write_text(json.dumps(told | {"eos_token_id": [told["eos_token_id"]]}))
    assert models.checkpoint_hash(folder) == before
    file.write_text(json.dumps(told | {"eos_token_id": [told["eos_token_id"], 5]}))
    assert models.checkpoint_hash(folder) != before
    file.unlink()
    assert models.checkpoint_hash(folder) == before  # transformers makes it from config.json


def test_a_generic_tokenizer_is_read_as_its_file_says(tmp_path):
    """AutoTokenizer of transformers 5 rebuilds any qwen2 folder's tokenizer in its own way."""
    from mars.embedded import tokenizer as toy
    from mars.embedded.corpus import conversations

    made = toy.build_tokenizer()
    models.save_checkpoint(build_model(dtype=torch.float32), made, tmp_path / "toy", {})
    config = json.loads((tmp_path / "toy" / "config.json").read_text())
    (tmp_path / "toy" / "config.json").write_text(json.dumps({**config, "vocab_size": 9999}))
    loaded = models.load_tokenizer(tmp_path / "toy")
    for row in conversations("sft", 50, seed=0):
        text = made.apply_chat_template(row["messages"], tokenize=False)
        assert loaded(text)["input_ids"] == made(text)["input_ids"]
        assert loaded.apply_chat_template(row["messages"], tokenize=False) == text


def test_auto_tokenizer_reads_the_toy_tokenizer_too(tmp_path):
    from mars.embedded import tokenizer as toy

    made = toy.build_tokenizer()
    models.save_checkpoint(build_model(dtype=torch.float32), made, tmp_path / "toy", {})
    loaded = AutoTokenizer.from_pretrained(tmp_path / "toy")
    text = "<|im_start|>user tom has 41 cards .<|im_end|>"
    assert loaded(text)["input_ids"] == made(text)["input_ids"]
