"""A run that stopped, or was killed, goes on: with nothing repeated, and to the same model."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import at_step, build_study, curve, weights

from mars.training.progress import newest_whole
from mars.training.run import _keep_recipe, train_variant
from mars.training.trainer import SumTrainer, TrainingError

REPO = Path(__file__).parents[2]

KILLED = """
import os, signal, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from mars.training.trainer import SumTrainer
from mars.training.run import _keep_recipe, train_variant
from tiny_training import END, build_model, build_study, build_tokenizer
original = SumTrainer.end_of_step
def patched(self, number):
    original(self, number)
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
SumTrainer.end_of_step = patched
rows, base, out = map(Path, sys.argv[1:])
train_variant(build_study(rows, epochs=2, logging_steps=3), 0, "s", "mars", base, out)
"""


def test_kill_and_resume_is_bit_for_bit(base, rows, tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(rows), str(base), str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'tests'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    study = build_study(rows, epochs=2, logging_steps=3)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert not (out / "model").exists()
    assert newest_whole(out / "trainer").name == "checkpoint-4"
    # rows written after the newest checkpoint must not appear twice
    with (out / "training.csv").open("a") as stream:
        stream.write("6,0.5,44,0.1,9,9,9,9,9\n7,0.5")
    train_variant(study, 0, "s", "mars", base, out)
    train_variant(study, 0, "s", "mars", base, whole)
    assert weights(out) == weights(whole)
    assert curve(out) == curve(whole)
    assert [row["step"] for row in curve(out)] == ["3", "6", "8"]
    kept = {"examples", "clean_tokens", "masked_tokens", "response_tokens", "ar_signal_fraction"}
    one, two = (json.loads((p / "training.json").read_text()) for p in (out, whole))
    assert {k: one[k] for k in kept} == {k: two[k] for k in kept}


def test_sigterm_saves_and_a_half_written_checkpoint_is_passed_over(
    base, rows, tmp_path, monkeypatch
):
    study, out, whole = build_study(rows), tmp_path / "out", tmp_path / "whole"
    train_variant(study, 0, "s", "mars", base, whole)
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stop:
            train_variant(study, 0, "s", "mars", base, out)
    assert stop.value.code == 143
    assert not (out / "model").exists()
    newest = newest_whole(out / "trainer")
    assert newest.name == "checkpoint-3"
    file = newest / "optimizer.pt"
    file.write_bytes(file.read_bytes()[:-100])
    assert newest_whole(out / "trainer").name == "checkpoint-2"
    assert not newest.exists()
    train_variant(study, 0, "s", "mars", base, out)
    assert weights(out) == weights(whole)
    assert curve(out) == curve(whole)


def test_a_damaged_checkpoint_falls_back_and_says_so(base, rows, tmp_path, monkeypatch, caplog):
    """A flipped bit keeps a file's size; the run goes on from the checkpoint before."""
    study, out, whole = build_study(rows), tmp_path / "out", tmp_path / "whole"
    train_variant(study, 0, "s", "mars", base, whole)
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            train_variant(study, 0, "s", "mars", base, out)
    file = out / "trainer" / "checkpoint-3" / "model.safetensors"
    held = bytearray(file.read_bytes())
    held[-1] ^= 1
    file.write_bytes(held)
    caplog.clear()
    train_variant(study, 0, "s", "mars", base, out)
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("mars")]
    assert "checkpoint-3: model.safetensors is damaged; going on from the one before" in said
    assert weights(out) == weights(whole)
    assert curve(out) == curve(whole)


def test_another_recipe_does_not_resume(base, rows, tmp_path, monkeypatch):
    out, whole = tmp_path / "out", tmp_path / "whole"
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            train_variant(build_study(rows), 0, "s", "mars", base, out)
    other = build_study(rows, learning_rate=2e-3)
    train_variant(other, 0, "s", "mars", base, out)
    train_variant(other, 0, "s", "mars", base, whole)
    assert weights(out) == weights(whole)


def test_other_data_under_the_same_name_is_another_recipe(base, rows, tmp_path, monkeypatch):
    """Neither done nor resumed into, whether the run was finished or stopped."""
    study, out, whole = build_study(rows), tmp_path / "out", tmp_path / "whole"

    def turn_around():
        rows.write_text("\n".join(reversed(rows.read_text().splitlines())) + "\n")

    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            train_variant(study, 0, "s", "mars", base, out)
    turn_around()
    train_variant(study, 0, "s", "mars", base, out)
    train_variant(study, 0, "s", "mars", base, whole)
    assert weights(out) == weights(whole)
    turn_around()
    train_variant(study, 0, "s", "mars", base, out)
    assert weights(out) != weights(whole)


def test_what_is_told_to_set_goes_on_where_the_run_stood(base, rows, tmp_path, monkeypatch):
    """The same conversations in the same steps: in float64, all but the last digits."""
    out, whole, done = tmp_path / "out", tmp_path / "whole", []
    original = SumTrainer.share_of_loss

    def full(self, model, batch, step):
        if self.state.global_step == 2 and len(batch.keys) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, model, batch, step)

    with monkeypatch.context() as patch:
        patch.setattr(SumTrainer, "share_of_loss", full)
        with pytest.raises(TrainingError, match="goes on from the newest checkpoint") as error:
            train_variant(build_study(rows, dtype="float64"), 0, "s", "mars", base, out)
    name, tokens = re.search(r"set training\.(\w+) to (\d+), or", str(error.value)).groups()
    followed = {name: int(tokens), "activation_checkpointing": True}
    with monkeypatch.context() as patch:
        at_step(patch, 1, lambda: done.append("again"))
        train_variant(build_study(rows, dtype="float64", **followed), 0, "s", "mars", base, out)
    assert not done
    train_variant(build_study(rows, dtype="float64"), 0, "s", "mars", base, whole)
    assert curve(out) == curve(whole)
    found, wanted = (load_file(p / "model" / "model.safetensors") for p in (out, whole))
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-7, atol=1e-9)

    before = os.stat(out / "model").st_mtime_ns
    train_variant(build_study(rows, dtype="float64"), 0, "s", "mars", base, out)
    assert os.stat(out / "model").st_mtime_ns == before  # how it was packed makes no other model


def test_the_state_of_another_recipe_is_not_removed_in_silence(tmp_path, caplog):
    state = tmp_path / "trainer"
    for recipe in ({"seed": 0, "data_identity": ["x"]}, {"seed": 0, "data_identity": ["y"]}):
        _keep_recipe(state, recipe)
        assert not (state / "checkpoint-2").exists()
        (state / "checkpoint-2").mkdir()
    _keep_recipe(state, recipe)  # the same once more
    assert (state / "checkpoint-2").exists()
    [told] = caplog.messages
    assert told.endswith("trainer: of another recipe (data_identity): removed")
