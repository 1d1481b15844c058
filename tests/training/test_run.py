"""Training a variant: resuming, stopping, determinism, invariance, and errors before the work."""

import errno
import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_training import END, build_model, build_study, build_tokenizer, curve, weights

from mars.data import DataError
from mars.models import CheckpointError, checkpoint_record, save_checkpoint
from mars.training import attention
from mars.training.progress import newest_whole, read_curve
from mars.training.run import train_variant
from mars.training.trainer import SumTrainer, TrainingError

REPO = Path(__file__).parents[2]


# ------------------------------------------------------------------------------- what is written


def test_a_run_and_what_it_leaves(base, rows, tmp_path):
    rows.write_text('{"messages": []}\n' + rows.read_text())
    study, out = build_study(rows, epochs=2), tmp_path / "out"
    train_variant(study, 0, "s", "mars", base, out)
    left = {p.name for p in out.iterdir()}
    assert left == {"model", "tensorboard", "training.csv", "training.json"}
    found = curve(out)
    assert [int(row["step"]) for row in found] == list(range(1, 9))
    assert found[-1]["epoch"] == "2.0"
    assert int(found[-1]["examples"]) == 60
    for row in found:
        total = float(row["loss_ar"]) + float(row["loss_mask"])
        assert float(row["loss"]) == pytest.approx(total, abs=1e-5)
    summary = json.loads((out / "training.json").read_text())
    assert summary["examples"] == 60
    assert 0.5 < summary["ar_signal_fraction"] < 1
    assert summary["response_tokens"] < summary["clean_tokens"]
    assert summary["flops"] > 0
    assert summary["peak_memory_mb"] > 0
    (fault,) = summary["data"]["dropped"].values()
    assert (fault["count"], fault["first"]) == (1, 1)
    assert summary["data"]["rows"] == 61
    record = checkpoint_record(out / "model")
    assert record["recipe"]["variant"] == "mars"
    assert record["mask_token_id"] == 41  # the first row that no token uses
    assert record["mask_token_source"] == "spare row"
    where = {"device": "cpu", "dtype": "float32", "attention": "documents"}
    where |= {"mask_token_id": 41, "mask_token_source": "spare row"}
    assert {key: summary[key] for key in where} == where

    before = os.stat(out / "model").st_mtime_ns
    train_variant(study, 0, "s", "mars", base, out)
    assert os.stat(out / "model").st_mtime_ns == before  # nothing to do

    first = weights(out)
    train_variant(study, 1, "s", "mars", base, out)
    assert weights(out) != first  # another recipe is not "done"


def test_a_term_that_is_not_computed_is_left_blank(base, rows, tmp_path):
    study = build_study(rows)
    train_variant(study, 0, "s", "diffusion", base, tmp_path / "out")
    row = curve(tmp_path / "out")[0]
    assert row["loss_ar"] == ""
    assert row["loss_mask"] == row["loss"]


def test_tensorboard_and_the_progress_bar_have_both_losses(base, rows, tmp_path, capsys):
    train_variant(build_study(rows), 0, "s", "mars", base, tmp_path / "out")
    held = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    held.Reload()
    assert {"train/loss_ar", "train/loss_mask", "train/tokens_per_second"} <= set(
        held.Tags()["scalars"]
    )
    assert [event.step for event in held.Scalars("train/loss")] == [1, 2, 3, 4]
    last = curve(tmp_path / "out")[-1]
    loss, ar, mask = (f"{float(last[name]):.3f}" for name in ("loss", "loss_ar", "loss_mask"))
    bar = re.findall(r"s mars: 100%[^\r\n]*", capsys.readouterr().err)[-1]
    assert re.search(r" 4/4 \[\d\d:\d\d<00:00, ", bar)  # steps [time spent<time left
    assert f"ar={ar}, loss={loss}, mask={mask}, tokens=" in bar
    assert int(re.search(r"tokens=(\d+)/s", bar)[1]) > 0


# ------------------------------------------------------------------------------- the machine


def test_the_precision_left_open_is_the_machine_s(base, rows, tmp_path):
    for dtype in ("auto", "float32"):
        train_variant(build_study(rows, dtype=dtype), 0, "s", "ar_sft", base, tmp_path / dtype)
    assert weights(tmp_path / "auto") == weights(tmp_path / "float32")
    recipe = checkpoint_record(tmp_path / "auto" / "model")["recipe"]
    assert recipe["training"]["dtype"] == "float32"  # a machine of another precision trains anew
    assert json.loads((tmp_path / "auto" / "training.json").read_text())["dtype"] == "float32"


def test_a_gpu_out_of_memory_names_what_to_set(base, rows, tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")

    monkeypatch.setattr(SumTrainer, "share_of_loss", full)
    for row_length, name in ((8, "micro_batch_tokens"), (80, "row_length")):
        study = build_study(rows, row_length=row_length)
        with pytest.raises(TrainingError) as error:
            train_variant(study, 0, "s", "mars", base, tmp_path / "out")
        said = str(error.value)
        assert "\n" not in said
        columns = int(re.search(r"a forward of (\d+) tokens", said)[1])
        assert f"set training.{name} to {columns // 2}, or " in said
    study = build_study(rows, row_length=8, micro_batch_tokens=8)  # one conversation
    with pytest.raises(TrainingError, match=r": set training.activation_checkpointing to true"):
        train_variant(study, 0, "s", "mars", base, tmp_path / "out")


@pytest.mark.parametrize(
    ("capability", "triton", "kind"),
    [
        ((9, 0), True, "flex"),
        ((8, 0), True, "flex"),
        ((7, 5), True, "dense"),
        ((9, 0), False, "dense"),
    ],
)
def test_attention_by_capability(monkeypatch, capability, triton, kind):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(attention, "find_spec", lambda _: triton or None)
    assert attention.kind(torch.device("cuda")) == kind
    assert attention.packs(torch.device("cuda")) is (kind == "flex")
    assert attention.kind(torch.device("cpu")) == "documents"


# ------------------------------------------------------------------------------- invariance


@pytest.mark.parametrize("variant", ["ar_sft", "mars", "diffusion"])
def test_packing_and_splitting_a_step_do_not_matter(base, rows, tmp_path, variant):
    """Same weights, loss and gradient norm: all in one row, a row each, a forward each."""
    found = []
    for length, tokens in ((512, 512), (8, 100), (60, 8)):
        study = build_study(rows, row_length=length, micro_batch_tokens=tokens, dtype="float64")
        out = tmp_path / f"{variant}{length}"
        train_variant(study, 0, "s", variant, base, out)
        found.append((load_file(out / "model" / "model.safetensors"), curve(out)))
    for state, rows_of in found[1:]:
        for name, value in found[0][0].items():
            torch.testing.assert_close(state[name], value, rtol=1e-7, atol=1e-9)
        assert rows_of == found[0][1]


def test_recomputed_activations_change_nothing(base, rows, tmp_path):
    found = []
    for recompute in (False, True):
        study = build_study(rows, dtype="float64", activation_checkpointing=recompute)
        out = tmp_path / str(recompute)
        train_variant(study, 0, "s", "mars", base, out)
        found.append(load_file(out / "model" / "model.safetensors"))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-9, atol=1e-11)


def test_bfloat16_trains(base, rows, tmp_path):
    train_variant(build_study(rows, dtype="bfloat16"), 0, "s", "mars", base, tmp_path / "b")
    train_variant(build_study(rows), 0, "s", "mars", base, tmp_path / "f")
    low, full = (float(curve(tmp_path / name)[-1]["loss"]) for name in "bf")
    assert low != full
    assert low == pytest.approx(full, rel=0.02)


# ------------------------------------------------------------------------------- what goes wrong


def test_a_loss_that_is_not_finite_stops_the_run(base, rows, tmp_path, monkeypatch):
    study, out = build_study(rows), tmp_path / "out"
    train_variant(study, 0, "s", "mars", base, out)
    before = weights(out)
    original = SumTrainer.share_of_loss

    def broken(self, model, batch, step):
        loss = original(self, model, batch, step)
        if self.state.global_step == 2:
            self.pending[-1] = (self.pending[-1][0] * float("nan"), self.pending[-1][1])
        return loss

    monkeypatch.setattr(SumTrainer, "share_of_loss", broken)
    with pytest.raises(TrainingError, match=r"not finite at step 3, .*\(0, \d+\)") as error:
        train_variant(study, 5, "s", "mars", base, out)
    assert "\n" not in str(error.value)
    assert weights(out) == before
    assert newest_whole(out / "trainer").name == "checkpoint-2"  # the last good state is kept


@pytest.mark.parametrize("step", [1, 3], ids=["where a checkpoint is due", "the last"])
def test_a_gradient_that_is_not_finite_stops_the_run(base, rows, tmp_path, monkeypatch, step):
    """One number of one parameter, of a step whose loss is finite; steps are counted from 0."""
    study, out, whole = build_study(rows), tmp_path / "out", tmp_path / "whole"
    original = SumTrainer.training_step

    def broken(self, model, *rest):
        loss = original(self, model, *rest)
        if self.state.global_step == step:
            next(model.parameters()).grad.view(-1)[7] = float("nan")
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(SumTrainer, "training_step", broken)
        match = rf"the gradient is not finite at step {step + 1}, .*\(0, \d+\)"
        with pytest.raises(TrainingError, match=match) as error:
            train_variant(study, 0, "s", "mars", base, out)
    assert "\n" not in str(error.value)
    assert not (out / "model").exists()
    kept = newest_whole(out / "trainer")
    assert (kept and kept.name) == (None if step == 1 else "checkpoint-2")
    train_variant(study, 0, "s", "mars", base, out)
    train_variant(study, 0, "s", "mars", base, whole)
    assert (weights(out), curve(out)) == (weights(whole), curve(whole))


def test_a_full_disk_is_one_line(base, rows, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="the disk is full; free some space") as error:
        train_variant(build_study(rows), 0, "s", "mars", base, tmp_path / "out")
    assert "\n" not in str(error.value)


def test_errors_come_before_any_work(base, rows, tmp_path):
    out = tmp_path / "out"

    def refused(study, error, match, parent=base, variant="mars"):
        with pytest.raises(error, match=match):
            train_variant(study, 0, "s", variant, parent, out)
        assert not out.exists()

    study = build_study(rows)
    few = r"processes is 2 and 1 started: use accelerate launch --multi_gpu --num_processes 2 -m"
    refused(build_study(rows, processes=2), TrainingError, few)
    named = build_study(rows, processes=2, accelerate="mine.yaml")
    how = r"launch --config_file mine.yaml --num_processes 2 -m mars train …$"
    refused(named, TrainingError, how)
    refused(study, CheckpointError, "no such checkpoint folder", parent=tmp_path / "nowhere")
    mars = study.variants["mars"]
    for change, match in [
        ({"objective": "mras"}, "did you mean 'mars'"),
        ({"block_size": 0}, "block_size is 0"),
        ({"alignment": "own"}, "knows 'decoder' and 'stream'"),
    ]:
        variants = {**study.variants, "mars": mars.model_copy(update=change)}
        refused(study.model_copy(update={"variants": variants}), ValueError, match)
    long = json.dumps({"messages": [{"role": "user", "content": "w3"}, {"role": "assistant",
                       "content": "w4 " * 90}]})  # fmt: skip
    text = rows.read_text().splitlines()
    rows.write_text("\n".join([*text[:59], long]))
    data = study.data.model_copy(update={"max_length": 200})
    refused(study.model_copy(update={"data": data}), ValueError, "context is 64 .* data.max_length")
    rows.write_text("\n".join([*text[:59], '{"messages": [{"role": "user", "content": "w3"}]}']))
    refused(study, DataError, r"rows.jsonl, line 60: no response")


def test_the_curve_ignores_a_broken_last_line(tmp_path):
    file = tmp_path / "training.csv"
    file.write_text("step,epoch\n1,0.5\n2,1.0\n3,1")
    assert [row["step"] for row in read_curve(file)] == ["1", "2"]
    assert read_curve(tmp_path / "none.csv") == []


def test_end_of_turn_learns_as_an_input_though_it_pads(base, rows, tmp_path):
    """torch never updates the row of an embedding's ``padding_idx``; ours must learn."""
    before = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    file = tmp_path / "untied"
    model = build_model(dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    save_checkpoint(model, build_tokenizer(), file, {})
    train_variant(build_study(rows), 0, "s", "ar_sft", file, tmp_path / "out")
    after = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert "lm_head.weight" in after  # so the input table moves by input gradients alone
    assert not torch.equal(after["model.embed_tokens.weight"][END], before[END])
