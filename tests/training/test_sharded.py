"""FSDP in two processes on the CPU, against one process that holds everything."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import build_study

from mars.training.run import train_variant

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]

TRAIN = """
import json, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from accelerate import PartialState
from accelerate.utils import DistributedType
from mars.training import trainer
from mars.training.run import train_variant
from mars.training.trainer import SumTrainer, TrainingError
from tiny_training import build_study
rows, base, out, broken, settings = sys.argv[1:]
made, stepped = PartialState.__init__, SumTrainer.training_step
def on_cpu(self, *words, **named):  # accelerate shards several GPUs only; gloo could as well
    made(self, *words, **named)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU
whole, checked = SumTrainer.whole_model, trainer.newest_whole
def one_piece(self):
    model = whole(self)
    assert (model is None) == (self.args.process_index > 0)  # one is enough
    return model
def by_one(folder):
    assert PartialState().is_main_process  # what removes broken ones
    return checked(folder)
SumTrainer.whole_model, trainer.newest_whole = one_piece, by_one
def patched(self, model, *rest):
    loss = stepped(self, model, *rest)
    assert self.accelerator.is_fsdp2
    if self.state.global_step == int(broken) and self.args.process_index == 1:
        next(model.parameters()).grad.to_local().view(-1)[-1] = float("nan")
    return loss
PartialState.__init__, SumTrainer.training_step = on_cpu, patched
study = build_study(Path(rows), **json.loads(settings))
try:
    train_variant(study, 0, "s", "mars", Path(base), Path(out))
except TrainingError:
    PartialState().wait_for_everyone()  # in vain where the other one goes on
    raise
"""


def launch(folder, rows, base, out, broken=-1, **settings):
    """Two processes, started with the file that a study on eight GPUs names.

    A gradient of step ``broken``, from 0, is not finite in the second one.
    """
    script = folder / "train.py"
    script.write_text(TRAIN)
    words = [str(rows), str(base), str(out), str(broken), json.dumps(settings)]
    file = REPO / "config" / "accelerate" / "eight_gpus_fsdp.yaml"
    command = ["-m", "accelerate.commands.launch", "--config_file", str(file)]
    sizes = ["--num_processes", "2", "--main_process_port", "0"]
    return subprocess.run(
        [sys.executable, *command, *sizes, str(script), *words],
        env={
            **os.environ,
            "PYTHONPATH": f"{REPO}:{REPO / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
        },
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip


def curve(out):
    with (out / "training.csv").open() as stream:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)]


def test_sharded_training_gives_the_model_of_one_process(base, rows, tmp_path):
    """One shard's gradient that is not finite stops both; they go on, and write one model."""
    one, two = tmp_path / "one", tmp_path / "two"
    train_variant(build_study(rows, dtype="float64"), 0, "s", "mars", base, one)

    stopped = launch(tmp_path, rows, base, two, broken=3, dtype="float64")
    assert stopped.returncode != 0
    assert "the gradient is not finite at step 4" in stopped.stderr
    assert not (two / "model").exists()
    assert [p.name for p in (two / "trainer").glob("checkpoint-*")] == ["checkpoint-2"]

    done = launch(tmp_path, rows, base, two, dtype="float64")
    assert done.returncode == 0, done.stderr
    assert curve(two) == curve(one)
    found = load_file(two / "model" / "model.safetensors")
    wanted = load_file(one / "model" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-9)


def test_sharded_bfloat16_keeps_losses_in_float32(base, rows, tmp_path):
    """As the paper's study trains: layers in bfloat16, activations made again in the backward."""
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"dtype": "bfloat16", "activation_checkpointing": True}
    train_variant(build_study(rows, **settings), 0, "s", "mars", base, one)
    done = launch(tmp_path, rows, base, two, **settings)
    assert done.returncode == 0, done.stderr
    for a, b in zip(curve(one), curve(two), strict=True):
        for name in ("loss", "loss_ar", "loss_mask"):
            assert float(b[name]) == pytest.approx(float(a[name]), rel=0.01)
    found = torch.tensor([float(row["loss"]) for row in curve(two)])
    assert not torch.equal(found.bfloat16().float(), found)
