"""Several processes, started by accelerate as a study starts them, against one."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from packaging import version
from safetensors.torch import load_file
from tiny_training import build_study

from mars import jobs
from mars.training.run import train_variant

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]

TRAIN = """
import os, signal, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from mars.training.run import train_variant
from mars.training.trainer import SumTrainer
from tiny_training import build_study
rows, base, out, variant, stop = sys.argv[1:]
original = SumTrainer.end_of_step
def patched(self, number):
    original(self, number)
    if number == int(stop) and self.args.process_index == self.args.world_size - 1:
        os.kill(os.getpid(), signal.SIGTERM)  # one process is told; all have to agree
SumTrainer.end_of_step = patched
study = build_study(Path(rows), epochs=14, dtype="float64", save_steps=20)
train_variant(study, 0, "s", variant, Path(base), Path(out))
"""

# The last process says that it trains, and waits to be told; saving takes longer than torch's
# launcher leaves its processes by itself.
SLOW_TO_SAVE = """
import time
original_save = SumTrainer._save_checkpoint
def slow(self, *words, **more):
    if self.args.process_index == 0:
        time.sleep(34)
    original_save(self, *words, **more)
SumTrainer._save_checkpoint = slow
def patched(self, number):
    original(self, number)
    if number == 3 and self.args.process_index == self.args.world_size - 1:
        Path(out, "trains").touch()
        while not self.terminated:
            time.sleep(0.05)
SumTrainer.end_of_step = patched
"""


def accelerate(folder, processes, script, *words):
    """Command and environment of training in several processes on the CPU."""
    file = folder / "train.py"
    file.write_text(script)
    # (--multi_gpu is the launcher of several processes; with --cpu accelerate leaves that to MPI)
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--mixed_precision", "no"]
    sizes = ["--num_processes", str(processes), "--num_machines", "1", "--main_process_port", "0"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPO}:{REPO / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    return [sys.executable, *command, *sizes, str(file), *map(str, words)], environment


def launch(folder, processes, *words):
    command, environment = accelerate(folder, processes, TRAIN, *words)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    version.parse(torch.__version__) < version.parse("2.12"),
    reason="torch's launcher has no timeout to set before 2.12",
)
def test_a_stopped_launcher_leaves_time_to_save(base, rows, tmp_path):
    """As at a time limit of SLURM, which tells every process of the job, the launcher too."""
    rule = (REPO / "workflow" / "rules" / "common.smk").read_text()
    assert 'f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={jobs.SAVING_SECONDS:.0f}; "' in rule
    before, train = TRAIN.split("study =")
    script = f"{before}{SLOW_TO_SAVE}study ={train}"
    out = tmp_path / "out"
    command, environment = accelerate(tmp_path, 2, script, rows, base, out, "mars", -1)
    environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = f"{jobs.SAVING_SECONDS:.0f}"
    with (
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen(command, env=environment, stdout=said, stderr=said) as launcher,
    ):
        until = time.monotonic() + 180
        while not (out / "trains").exists() and launcher.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.1)
        for process in (*psutil.Process(launcher.pid).children(), launcher):
            process.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=120) != 0
    told = (tmp_path / "said").read_text()
    assert "SIGKILL" not in told
    saved = sorted(file.name for file in (out / "trainer" / "checkpoint-4").glob("*"))
    assert {"complete.json", "rng_state_0.pth", "rng_state_1.pth"} <= set(saved), told


def curve(out):
    with (out / "training.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("variant", ["mars", "ar_sft"])
def test_two_processes_give_the_loss_curve_of_one(base, rows, tmp_path, variant):
    """… stop together where one is told to, and go on where they stood."""
    one, two = tmp_path / "one", tmp_path / "two"
    study = build_study(rows, epochs=14, dtype="float64", save_steps=20)
    train_variant(study, 0, "s", variant, base, one)

    stopped = launch(tmp_path, 2, rows, base, two, variant, 30)
    assert stopped.returncode != 0
    assert not (two / "model").exists(), stopped.stderr
    assert (two / "trainer" / "checkpoint-31").is_dir(), stopped.stderr
    assert sorted(p.name for p in (two / "trainer" / "checkpoint-31").glob("rng_state*")) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]
    done = launch(tmp_path, 2, rows, base, two, variant, -1)
    assert done.returncode == 0, done.stderr
    assert (two / "model").is_dir()
    assert not (two / "trainer").exists()

    expected, found = curve(one), curve(two)
    assert [row["step"] for row in found] == [str(step) for step in range(1, 54)]
    for a, b in zip(expected, found, strict=True):
        assert a["examples"] == b["examples"]
        for name in ("loss", "loss_ar", "loss_mask", "grad_norm"):
            if a[name]:
                assert float(b[name]) == pytest.approx(float(a[name]), rel=1e-5), (a, b)
    wanted = load_file(one / "model" / "model.safetensors")
    for name, value in load_file(two / "model" / "model.safetensors").items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-8)


def test_two_machines_shard_as_one_does():
    """Copies of a 7B model, one a GPU, would not fit."""
    one, two = (
        yaml.safe_load((REPO / "config" / "accelerate" / f"{name}.yaml").read_text())
        for name in ("eight_gpus_fsdp", "multi_node")
    )
    assert two["fsdp_config"] == one["fsdp_config"]
    assert two["num_processes"] == two["num_machines"] * one["num_processes"]


@pytest.mark.parametrize("file", sorted((REPO / "config" / "accelerate").glob("*.yaml")))
def test_accelerate_reads_our_configurations(file):
    held = yaml.safe_load(file.read_text())
    config = load_config_from_file(str(file))
    assert config.num_processes == held["num_processes"]
    assert held["mixed_precision"] == "no"  # training.dtype decides
