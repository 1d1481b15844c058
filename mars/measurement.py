"""What every measurement by the clock shares: the machine's name, and runs kept as they finish."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


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
