"""What a job owes to the workflow that started it, and what the workflow may ask of the machine.

A job ends when its workflow does, however that ended; a lock that a dead workflow left behind is
cleared, and only that; no more jobs run at once than the machine has cores and memory for; and no
two of them share a GPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

PARENT_VARIABLE = "MARS_WORKFLOW_PID"
SAVING_SECONDS = 600.0  # what a job that saves on SIGTERM is given: 7B writes 91 GB


def end_with_workflow(poll_seconds: float = 1.0) -> None:
    """Watch the workflow that started this process, if one did, and end when it is gone.

    The workflow names itself in ``MARS_WORKFLOW_PID``; a command typed by hand has no such
    variable and is left alone. A process that handles SIGTERM, as training does to save, is sent it
    first. Everything is written under a temporary name and renamed, so an end at any moment leaves
    only whole files.
    """
    named = os.environ.get(PARENT_VARIABLE)
    if not named:
        return
    try:
        workflow = psutil.Process(int(named))
    except (ValueError, psutil.Error):
        _end_process_tree()
        return

    def watch() -> None:
        while _alive(workflow):
            time.sleep(poll_seconds)
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(SAVING_SECONDS)
        _end_process_tree()

    threading.Thread(target=watch, name="end-with-workflow", daemon=True).start()


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _end_process_tree() -> None:
    me = psutil.Process()
    for child in me.children(recursive=True):
        child.kill()
    me.send_signal(signal.SIGKILL)


def clear_stale_lock(folder: Path) -> str:
    """Remove Snakemake's lock on a working directory if no Snakemake lives in that directory.

    Returns:
        What was found, as a line for the user: "" where there was no lock.

    Raises:
        LockedError: a Snakemake process is at work in the directory.
    """
    locks = sorted((folder / ".snakemake" / "locks").glob("*.lock"))
    if not locks:
        return ""
    if owners := snakemakes_in(folder):
        pids = ", ".join(str(pid) for pid in owners)
        raise LockedError(
            f"{folder}: Snakemake (process {pids}) is at work here; wait for it, or end it first"
        )
    for lock in locks:
        lock.unlink(missing_ok=True)
    return f"{folder}: cleared the lock of a Snakemake that is no longer alive"


def snakemakes_in(folder: Path) -> list[int]:
    """Ids of the living Snakemake processes whose working directory is the folder."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.pid != os.getpid() and _is_snakemake(process.info["cmdline"] or []):
            try:
                at = Path(process.cwd())
                if _alive(process) and at.resolve() == folder.resolve():
                    found.append(process.pid)
            except (psutil.Error, OSError):
                continue
    return found


def _is_snakemake(command: list[str]) -> bool:
    """Whether a command line is Snakemake's own: `snakemake …` or `python -m snakemake …`."""
    names = [Path(word).name for word in command[:5]]
    if not names:
        return False
    if names[0] == "snakemake":
        return True
    rest = names[1:] if names[0].startswith("python") else []
    return rest[:1] == ["snakemake"] or ("-m", "snakemake") in itertools.pairwise(rest)


class LockedError(RuntimeError):
    """The working directory is in use; the message is one line for the user."""


def usable_cores() -> int:
    """CPU cores this process may use: affinity and container quota counted, not just installed."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    for line in _cgroup_files("cpu.max"):
        quota, _, period = line.partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


def usable_memory_mb() -> int:
    """Memory this process may still take, in MB: what is free, and what its container allows."""
    free = psutil.virtual_memory().available
    limits = _cgroup_files("memory.max")
    used = _cgroup_files("memory.current")
    for limit, now in zip(limits, used, strict=False):
        if limit.isdigit() and now.isdigit():
            free = min(free, int(limit) - int(now))
    return max(0, free) // 2**20


def gpu_count() -> int:
    """NVIDIA GPUs this process may use, without importing torch."""
    return len(visible_gpus())


def visible_gpus() -> list[str]:
    """Names of the GPUs this process may use, as CUDA_VISIBLE_DEVICES has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        found = [p.name[6:] for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()]
        return [str(i) for i in range(len(found))]
    return [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1")]


class GpuError(RuntimeError):
    """A job asks for more GPUs than there are; the message is one line for the user."""


def claim_gpus(
    count: int,
    devices: Sequence[str] | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> list[str]:
    """Make so many GPUs this process's own, waiting for them, and show CUDA no others.

    A GPU is a locked file in a folder of this machine, and the lock ends with the process, killed
    or not; what it starts by `exec` or `fork` shares it. Only one process at a time gathers GPUs
    (the others wait at a gate, in turn), so two that want several never wait for each other.
    In a job of SLURM the locks are that job's own: its devices may be numbered from 0, as another
    job's are. Nothing is claimed where there is no GPU, in what a process that has claimed some
    starts, and in what `accelerate` started.

    Args:
        count: GPUs wanted, at least 1.
        devices: those to choose from; by default all this process may use.
        folder: where the locks are; by default one of the user's, and of the SLURM job step, in the
            machine's temporary folder.
        say: called with a line for the user when the claim has to wait.

    Returns:
        The GPUs claimed, also set as ``CUDA_VISIBLE_DEVICES``; nothing where none was claimed.

    Raises:
        GpuError: there are fewer GPUs than asked for.
    """
    devices = visible_gpus() if devices is None else list(devices)
    if not devices or _HANDED_OUT & os.environ.keys():
        return []
    if count > len(devices):
        raise GpuError(
            f"{count} GPUs are asked for and this machine has {len(devices)} "
            f"({', '.join(devices)}): set training.processes, or evaluation.processes × "
            "evaluation.gpus_per_process, to no more, or run on a larger machine"
        )
    step = [os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in os.environ]
    name = "-".join(["mars-gpus", str(os.getuid()), *step])
    folder = folder or Path(tempfile.gettempdir()) / name
    folder.mkdir(parents=True, exist_ok=True)
    claimed: list[str] = []
    told = False
    with (folder / "gate.lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        while len(claimed) < count:
            for device in devices:
                free = device not in claimed and len(claimed) < count
                if free and _lock(folder / f"{device.replace('/', '_')}.lock"):
                    claimed.append(device)
            if len(claimed) < count:
                if not told:
                    say(f"mars: waiting for {count} of {len(devices)} GPUs to be free")
                told = True
                time.sleep(0.2)
    claimed.sort(key=devices.index)
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ[_CLAIMED] = ",".join(claimed)
    return claimed


_CLAIMED = "MARS_CLAIMED_GPUS"
_HANDED_OUT = {"LOCAL_RANK", _CLAIMED}


def _lock(path: Path) -> bool:
    """Lock a file for as long as this process, or what it becomes by `exec`, lives."""
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return False
    os.set_inheritable(held, True)
    return True


def _cgroup_files(name: str) -> list[str]:
    """Contents of a control-group file, from this process's group up to the root (Linux only)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = Path("/sys/fs/cgroup") / path.lstrip("/")
    found = []
    while True:
        with contextlib.suppress(OSError):
            found.append((group / name).read_text(encoding="ascii").strip())
        if group in (Path("/sys/fs/cgroup"), Path("/")):
            return found
        group = group.parent
