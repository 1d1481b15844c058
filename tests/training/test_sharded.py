"""FSDP in two processes on the CPU, against one process that holds everything."""

import csv
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
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from accelerate import PartialState
from accelerate.utils import DistributedType
from mars.training.run import train_variant
from mars.training.trainer import SumTrainer, TrainingError
from tiny_training import build_study
rows, base, out, broken = sys.argv[1:]
made, stepped = PartialState.__init__, SumTrainer.training_step
def on_cpu(self, *words, **named):  # accelerate shards several GPUs only; gloo could as well
    made(self, *words, **named)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU
def patched(self, model, *rest):
    loss = stepped(self, model, *rest)
    assert self.accelerator.is_fsdp2
    if self.state.global_step == int(broken) and self.args.process_index == 1:
        next(model.parameters()).grad.to_local().view(-1)[-1] = float("nan")
    return loss
PartialState.__init__, SumTrainer.training_step = on_cpu, patched
study = build_study(Path(rows), dtype="float64")
try:
    train_variant(study, 0, "s", "mars", Path(base), Path(out))
except TrainingError:
    PartialState().wait_for_everyone()  # in vain where the other one goes on
    raise
"""


def launch(folder, *words):
    """Two processes, started with the file that a study on eight GPUs names."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    file = REPO / "config" / "accelerate" / "eight_gpus_fsdp.yaml"
    command = ["-m", "accelerate.commands.launch", "--config_file", str(file)]
    sizes = ["--num_processes", "2", "--main_process_port", "0"]
    return subprocess.run(
        [sys.executable, *command, *sizes, str(script), *map(str, words)],
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

    stopped = launch(tmp_path, rows, base, two, 3)
    assert stopped.returncode != 0
    assert "the gradient is not finite at step 4" in stopped.stderr
    assert not (two / "model").exists()
    assert [p.name for p in (two / "trainer").glob("checkpoint-*")] == ["checkpoint-2"]

    done = launch(tmp_path, rows, base, two, -1)
    assert done.returncode == 0, done.stderr
    assert curve(two) == curve(one)
    found = load_file(two / "model" / "model.safetensors")
    wanted = load_file(one / "model" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-9)
