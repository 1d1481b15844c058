"""What a study ran on: hardware, operating system, library versions, the code's commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mars.analysis.render import write_text

LIBRARIES = (
    *("torch", "transformers", "tokenizers", "accelerate", "datasets", "lm-eval", "numpy"),
    *("pandas", "scipy", "matplotlib", "seaborn", "pydantic", "safetensors", "snakemake"),
)


def environment() -> dict[str, Any]:
    """The machine and the software, as one JSON-able mapping; what is unknown is null."""
    return {
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cores_of_machine": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": _dirty(),
    }


def write_environment(out: Path) -> Path:
    """Write :func:`environment` to ``out`` as JSON."""
    return write_text(out, json.dumps(environment(), indent=2) + "\n")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _git(*words: str) -> str | None:
    return _output("git", "-C", str(Path(__file__).parents[2]), *words)


def _dirty() -> bool | None:
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return None if changes is None else bool(changes)


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or platform.machine() or None


def _memory_gb() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return round(total / 2**30, 1)


def _gpus() -> list[str]:
    found = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return found.splitlines() if found else []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
