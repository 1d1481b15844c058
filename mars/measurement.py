"""What measurements by the clock share: the machine's name and ceilings, finished runs kept."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor


class MeasurementError(RuntimeError):
    """A measurement that cannot be kept or gone on with; the message is one line for the user."""


def machine_name(device: torch.device | str) -> str:
    """Name of the GPU, or of the processor."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    if (info := Path("/proc/cpuinfo")).is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions(device: torch.device | str, dtype: str) -> dict[str, Any]:
    """What runs of one measurement must have in common; those of another are not mixed in."""
    return {
        "device": machine_name(device),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "dtype": dtype,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def warn_if_busy() -> None:
    """Say on standard error that something else runs here: several threads suffer most by it."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"mars: {load:.1f} processes ran here in the last minute: seconds mean little unless "
            "the machine is otherwise idle",
            file=sys.stderr,
        )


@contextmanager
def memory_for(setting: str, value: int) -> Iterator[None]:
    """Have what the memory does not hold say which setting to lower, and to what.

    Args:
        setting: how many are computed together; value: what it stands at.

    Raises:
        MeasurementError: for torch's OutOfMemoryError, and a MemoryError, as a decoder's own is.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        fits = min(getattr(error, "fits", value), value // 2)
        remedy = f"try {fits}" if fits else "use a device with more memory"
        line = " ".join(str(error).split())[:160]
        raise MeasurementError(f"out of memory at {value} ({setting}): {remedy} ({line})") from None


class Partial:
    """Key → JSON value, in a hidden file beside the output, a line each; gone when all is done.

    The first line is a fingerprint of everything that shapes the values. A file with another one
    is of no use and is begun anew, so that no run is mixed with those of other settings, code or
    machines. Being no output of the workflow, it survives a job that fails.
    """

    def __init__(self, out: Path, fingerprint: str) -> None:
        self.path = out.with_name(f".{out.name}.partial")
        self._known: dict[str, Any] = {}
        lines = self._whole_lines()
        if lines[:1] == [{"fingerprint": fingerprint}]:
            self._known = {line["key"]: line["value"] for line in lines[1:]}
            self._write("".join(json.dumps(line) + "\n" for line in lines), "w")
        else:
            self._write(json.dumps({"fingerprint": fingerprint}) + "\n", "w")

    def _whole_lines(self) -> list[Any]:
        """Up to the first that is torn."""
        found = []
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MeasurementError(
                f"{self.path}: cannot be read: {error.strerror or error}; remove it and run again"
            ) from None
        for line in text.split("\n")[:-1]:
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def _write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise MeasurementError(
                f"{self.path}: cannot be written: {error.strerror or error}; free some space and "
                "run again, finished runs are kept"
            ) from None

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def keep(self, key: str, value: Any) -> None:
        """Remember a value; it is on disk when this returns."""
        self._write(json.dumps({"key": key, "value": value}) + "\n", "a")
        self._known[key] = value

    @property
    def sessions(self) -> list[Any]:
        """What was noted as each session began, the first that was not interrupted included."""
        return [value for key, value in self._known.items() if key.startswith("session ")]

    def begin_session(self) -> None:
        """Note that the measurement is begun or gone on with, and after how many values."""
        note = {"after": len(self._known), "load_average": list(os.getloadavg())}
        self.keep(f"session {len(self.sessions)}", note)

    def remove(self) -> None:
        """All is done: the output has everything."""
        self.path.unlink(missing_ok=True)


# --------------------------------------------------------------------------- ceilings

CEILING_SECONDS = 1.0
"""Each ceiling is the best of as many repeats as fit into this time."""


@dataclass(frozen=True)
class Ceilings:
    """The best this machine was seen to do.

    Attributes:
        flops: floating-point operations a second, of a large matrix product.
        bytes: bytes a second, read from memory.
    """

    flops: float
    bytes: float


def ceilings(partial: Partial, dtype: torch.dtype, device: str) -> Ceilings:
    """This machine's, measured once for all starts of a measurement."""
    if "ceilings" not in partial:
        partial.keep("ceilings", asdict(measure_ceilings(dtype, device)))
    return Ceilings(**partial["ceilings"])


def measure_ceilings(dtype: torch.dtype, device: str) -> Ceilings:
    """Measure both, of ``dtype`` and of torch's threads, in about ``2 · CEILING_SECONDS``."""
    with torch.inference_mode():
        return Ceilings(_matmul_rate(dtype, device), _read_rate(device))


def _matmul_rate(dtype: torch.dtype, device: str) -> float:
    size = 8192 if device == "cuda" else 1024
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    made = torch.empty_like(left)
    return 2 * size**3 / _best(lambda: torch.mm(left, right, out=made), device)


def _read_rate(device: str) -> float:
    """Of a matrix–vector product, which is what decoding one row does with the weights."""
    columns = 4096
    rows = _buffer_bytes(device) // (4 * columns)
    matrix = torch.ones(rows, columns, device=device)
    vector = torch.ones(columns, device=device)
    made = torch.empty(rows, device=device)
    seconds = _best(lambda: torch.mv(matrix, vector, out=made), device)
    return matrix.nbytes / seconds


def _buffer_bytes(device: str) -> int:
    """Well beyond the last-level cache, so that little of it survives from repeat to repeat."""
    if device == "cuda":
        return 2**31
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    last = max((int(size[:-1]) * 2**10 for size in sizes if size.endswith("K")), default=0)
    return min(max(4 * last, 2**28), 2**29)  # what fits beside the models, on a small machine


def _best(run: Callable[[], Tensor], device: str) -> float:
    """Seconds of the fastest of several runs, at least two, after one that is not timed."""
    run()
    best, spent, done = float("inf"), 0.0, 0
    while spent < CEILING_SECONDS or done < 2:
        start = clock(device)
        run()
        seconds = clock(device) - start
        best, spent, done = min(best, seconds), spent + seconds, done + 1
    return best


def clock(device: str) -> float:
    """Seconds now, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# --------------------------------------------------------------------------- memory


def most_allocated(run: Callable[[], object]) -> int:
    """Bytes held at their most of the tensors that a call allocates on a CPU.

    Counted tensor by tensor, so it is the call's own, whatever ran before in this process.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    found: Any = profile.profiler
    events = [e for e in found.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: int(e.start_ns())):
        held += int(event.nbytes())
        most = max(most, held)
    return most
