"""GPUs of one machine: no two jobs have the same one, and a killed job gives its own back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mars import cli, jobs

JOB = """
import json, os, sys, time
from pathlib import Path
from mars import jobs
folder, count, total, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
devices = [str(i) for i in range(total)]
mine = jobs.claim_gpus(count, devices, folder / "locks", say=lambda line: None)
assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(mine)
events = os.open(folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(events, f"+ {os.getpid()} {' '.join(mine)}\\n".encode())
time.sleep(float(seconds))
os.write(events, f"- {os.getpid()} {' '.join(mine)}\\n".encode())
"""


@pytest.fixture(autouse=True)
def _nothing_handed_out(monkeypatch):
    for name in (
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "LOCAL_RANK",
        "MARS_CLAIMED_GPUS",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.setenv(name, "")  # (so that what a test sets is taken back)
        monkeypatch.delenv(name)


def job(folder: Path, count: int, total: int, seconds: float) -> subprocess.Popen[bytes]:
    words = [str(folder), str(count), str(total), str(seconds)]
    return subprocess.Popen([sys.executable, "-c", JOB, *words])


def events(folder: Path) -> list[list[str]]:
    path = folder / "events"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_jobs_at_once_never_share_a_gpu_and_all_get_theirs(tmp_path):
    """Of three GPUs some jobs want one, some two, some all three: none waits for ever."""
    counts = [1, 2, 3, 1, 2, 3, 1, 1]
    started = [job(tmp_path, count, 3, 0.05) for count in counts]
    assert [one.wait(timeout=60) for one in started] == [0] * len(counts)
    busy: set[str] = set()
    most = 0
    for sign, _, *gpus in events(tmp_path):
        if sign == "+":
            assert not busy & set(gpus)
            busy |= set(gpus)
        else:
            busy -= set(gpus)
        most = max(most, len(busy))
    assert most == 3
    claims = [gpus for sign, _, *gpus in events(tmp_path) if sign == "+"]
    assert sorted(map(len, claims)) == sorted(counts)


def test_a_killed_job_gives_its_gpus_back(tmp_path):
    holder = job(tmp_path, 2, 2, 60)
    assert wait_for(lambda: events(tmp_path))
    waiting = job(tmp_path, 1, 2, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=0.7)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert waiting.wait(timeout=20) == 0


def test_a_command_run_on_gpus_keeps_them_after_it_has_replaced_its_launcher(tmp_path):
    """`mars gpus` becomes the command, which starts others: they share its GPUs, and claim none."""
    says = "import os; from mars import jobs; print(os.environ['CUDA_VISIBLE_DEVICES'], end='');"
    says += "print(jobs.claim_gpus(1), flush=True); import time; time.sleep(60)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "mars", "gpus", "1", sys.executable, "-c", says]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as first:
        try:
            assert first.stdout.readline().strip() == "GPU-a[]"
            with subprocess.Popen(words, env=environment, **pipes) as second:
                assert second.stdout.readline().strip() == "GPU-b[]"
                second.kill()
        finally:
            first.kill()


def test_a_wait_is_said_once(tmp_path):
    holder = job(tmp_path, 1, 1, 1.5)
    assert wait_for(lambda: events(tmp_path))
    said: list[str] = []
    assert jobs.claim_gpus(1, ["0"], tmp_path / "locks", said.append) == ["0"]
    assert said == ["mars: waiting for 1 of 1 GPUs to be free"]
    assert holder.wait() == 0


@pytest.mark.parametrize("name", ["LOCAL_RANK", "MARS_CLAIMED_GPUS"])
def test_what_others_handed_out_is_left_alone(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "0")
    assert jobs.claim_gpus(1, ["0", "1"], tmp_path) == []
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert not list(tmp_path.iterdir())


def test_the_locks_of_a_slurm_step_are_its_own(tmp_path, monkeypatch):
    """Two jobs may both call their device 0; within one, a local workflow shares nothing."""
    monkeypatch.setattr(jobs.tempfile, "tempdir", str(tmp_path))
    for number, step in (("7", "0"), ("8", "0"), ("8", "1")):
        monkeypatch.setenv("SLURM_JOB_ID", number)
        monkeypatch.setenv("SLURM_STEP_ID", step)
        assert jobs.claim_gpus(1, ["0", "1"]) == ["0"]
        monkeypatch.delenv("MARS_CLAIMED_GPUS")
    assert jobs.claim_gpus(1, ["0", "1"]) == ["1"]  # of the same step
    assert len(list(tmp_path.iterdir())) == 3


def test_more_gpus_than_there_are_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert cli.main(["gpus", "4", "true"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "4 GPUs are asked for and this machine has 2 (3, 5)" in said
    assert "training.processes" in said


def test_an_unknown_command_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["gpus", "1", "no-such-command-here"]) == 2
    assert (
        capsys.readouterr().err == "mars: no-such-command-here: no such command; check its name\n"
    )
