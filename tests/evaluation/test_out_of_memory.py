"""Measurements on a GPU whose memory does not hold a batch: which setting, and what to try."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from mars.config import Study, parse_study
from mars.decoding.contract import MemoryShortageError
from mars.evaluation.throughput import arrivals, grid, profile
from mars.evaluation.throughput.stages import Stage
from mars.measurement import MeasurementError, Partial, memory_for

from .conftest import REPOSITORY

SAID = "CUDA out of memory.\nTried to allocate 2 GiB"


def full(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError(SAID)


@pytest.mark.parametrize(
    ("error", "value", "remedy"),
    [
        (torch.OutOfMemoryError(SAID), 64, "try 32"),
        (MemoryShortageError(SAID, 5), 64, "try 5"),
        (torch.OutOfMemoryError(SAID), 1, "use a device with more memory"),
    ],
)
def test_the_setting_and_what_to_try_are_one_line(
    error: Exception, value: int, remedy: str
) -> None:
    with pytest.raises(MeasurementError) as raised, memory_for("a.setting", value):
        raise error
    line = str(raised.value)
    assert "\n" not in line
    assert f"at {value} (a.setting): {remedy} (" in line


def test_what_else_goes_wrong_is_left_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="another"), memory_for("a.setting", 2):
        raise RuntimeError("another")


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("grid", r"at 16 \(throughput.batch_sizes\): try 8"),
        ("batching", r"at 16 \(throughput.continuous.slots\): try 8"),
    ],
)
def test_of_the_wall_clock_grid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str, told: str
) -> None:
    name, cache, draft = next(iter(profile.PROFILED))
    method: Any = SimpleNamespace(label="x", name=name, cache=cache, draft=draft, run=full)
    stage = Stage(part, "model", 16, 8, (), (method,))
    partial = Partial(tmp_path / "throughput.csv", "")
    monkeypatch.setattr(grid, "_warm_up_all", full)
    with pytest.raises(MeasurementError, match=told):
        grid._measure_all([stage], 1, {}, "cpu", partial)
    if part == "grid":
        with pytest.raises(MeasurementError, match=told):
            grid._profile_all([stage], {}, "cpu", partial)


def test_of_the_arrival_trace(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = yaml.safe_load((REPOSITORY / "tests" / "mini.yaml").read_text())
    study: Study = parse_study(raw)
    monkeypatch.setattr(arrivals, "serve", full)
    with pytest.raises(MeasurementError, match=r"at 2 \(throughput.trace.slots\): try 1"):
        arrivals.measure_arrivals(study, 0, checkpoint, tmp_path / "arrivals.csv")
