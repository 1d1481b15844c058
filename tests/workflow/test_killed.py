"""After a kill: jobs end with their Snakemake, only a dead one's lock is cleared, runs go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mars import jobs

RUN = ("snakemake", "--cores", "8", "--configfile", "tests/mini.yaml", "--", "all")


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_killed_snakemake_takes_its_jobs_along_and_is_finished_by_one_command(make_checkout):
    made = make_checkout()
    started = made.folder / "evaluate.started"
    running = made.start(*RUN, STAND_IN_SLEEPS="evaluate")
    assert wait_for(started.exists)
    job = psutil.Process(int(started.read_text()))

    busy = made.run("mars", "unlock")
    assert busy.returncode == 2
    assert f"process {running.pid}" in busy.stderr
    assert len(busy.stderr.splitlines()) == 1

    running.send_signal(signal.SIGKILL)
    running.wait()
    assert wait_for(lambda: not job.is_running(), seconds=20)

    refused = made.run(*RUN)
    assert refused.returncode != 0
    assert "--unlock" in refused.stdout + refused.stderr

    cleared = made.run("mars", "unlock")
    assert cleared.returncode == 0, cleared.stderr
    assert "cleared" in cleared.stdout
    finished = made.run(*RUN)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert (made.folder / "reports" / "mini" / "index.html").is_file()
    assert made.jobs("--configfile", "tests/mini.yaml") == set()


def test_without_a_lock_there_is_nothing_to_clear(tmp_path):
    assert jobs.clear_stale_lock(tmp_path) == ""


def a_lock_in(folder: Path) -> Path:
    lock = folder / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("results/report\n", encoding="utf-8")
    return lock


def test_a_lock_without_an_owner_is_cleared(tmp_path):
    lock = a_lock_in(tmp_path)
    assert "no longer alive" in jobs.clear_stale_lock(tmp_path)
    assert not lock.exists()


@pytest.mark.parametrize("here", [True, False])
def test_only_a_snakemake_of_this_folder_holds_its_lock(tmp_path, here):
    lock = a_lock_in(tmp_path / "study")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "snakemake").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    at = lock.parents[2] if here else elsewhere
    with subprocess.Popen([sys.executable, str(tmp_path / "snakemake")], cwd=at) as process:
        try:
            if here:
                with pytest.raises(jobs.LockedError, match=str(process.pid)):
                    jobs.clear_stale_lock(lock.parents[2])
                assert lock.exists()
            else:
                jobs.clear_stale_lock(lock.parents[2])
                assert not lock.exists()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["python3.11", "-m", "snakemake", "--cores", "8"], True),
        (["/venv/bin/python", "/venv/bin/snakemake", "all"], True),
        (["snakemake"], True),
        (["vim", "snakemake"], False),
        (["python", "-m", "mars", "unlock"], False),
        (["grep", "-m", "snakemake"], False),
        ([], False),
    ],
)
def test_which_command_lines_are_snakemake(command, is_one):
    assert jobs._is_snakemake(command) is is_one


CHILD = """
import subprocess, sys, time
from pathlib import Path
from mars import jobs
jobs.end_with_workflow(poll_seconds=0.05)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(60)
"""


def test_a_job_ends_with_its_workflow_and_takes_its_children_along(tmp_path):
    workflow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    environment = {**os.environ, jobs.PARENT_VARIABLE: str(workflow.pid)}
    note = tmp_path / "child"
    job = subprocess.Popen([sys.executable, "-c", CHILD, str(note)], env=environment)
    assert wait_for(lambda: note.exists() and note.read_text())
    child = psutil.Process(int(note.read_text()))
    assert job.poll() is None
    workflow.kill()
    workflow.wait()
    assert job.wait(timeout=20) == -signal.SIGKILL
    assert wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 20)


SAVES = """
import signal, sys, time
from pathlib import Path
from mars import jobs
def save(*_):
    Path(sys.argv[1]).write_text("saved")
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
jobs.end_with_workflow(poll_seconds=0.05)
Path(sys.argv[1]).write_text("started")
time.sleep(60)
"""


def test_a_job_that_saves_when_it_is_told_to_end_is_told_so_first(tmp_path):
    workflow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    environment = {**os.environ, jobs.PARENT_VARIABLE: str(workflow.pid)}
    note = tmp_path / "note"
    job = subprocess.Popen([sys.executable, "-c", SAVES, str(note)], env=environment)
    assert wait_for(lambda: note.exists() and note.read_text() == "started")
    workflow.kill()
    workflow.wait()
    assert job.wait(timeout=20) == 7
    assert note.read_text() == "saved"


def test_a_command_typed_by_hand_is_not_watched(monkeypatch):
    monkeypatch.delenv(jobs.PARENT_VARIABLE, raising=False)
    jobs.end_with_workflow()


def test_the_machine_is_measured():
    assert 1 <= jobs.usable_cores() <= (os.cpu_count() or 1)
    assert 0 < jobs.usable_memory_mb() <= psutil.virtual_memory().total // 2**20
    assert jobs.gpu_count() >= 0


def test_gpus_are_those_made_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert jobs.gpu_count() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert jobs.gpu_count() == 0
