"""The wall-clock grid: its rows, its files, and what an interrupted one keeps."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from mars import measurement
from mars.analysis.columns import THROUGHPUT
from mars.analysis.speed import LABELS, SHORT
from mars.analysis.tables import build
from mars.config import Study
from mars.config.speed import Continuous, Replay
from mars.decoding import Request, costs
from mars.decoding.contract import Work
from mars.evaluation import throughput
from mars.evaluation.source import EvaluationError
from mars.evaluation.throughput import grid, profile
from mars.evaluation.throughput.methods import Method
from mars.evaluation.throughput.stages import Stage, continuous_requests
from mars.measurement import Partial

MODEL = ["generate", "generate_static", "ar", "mars none", "mars block", "mars cursor"]
MODEL += ["mars cursor auto", "released block"]
REPLAYED = ["generate", "generate_static", "ar", "released block", "mars none", "mars block"]
REPLAYED += ["mars cursor", "mars cursor auto"]
BATCHING = ["ar static", "ar", "mars cursor static", "mars cursor"]
BATCHING += ["mars cursor auto static", "mars cursor auto"]


def name(row: dict[str, str]) -> str:
    parts = [row["method"]]
    parts += [row["cache"]] if row["draft"] else []
    parts += ["auto"] if row["draft"] == "auto" else []
    static = row["cache"] == "cursor" and row["scheduling"] == "static"
    return " ".join(parts + ["static"] * static)


@pytest.fixture
def small(study: Study, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(measurement, "CEILING_SECONDS", 0.0)
    monkeypatch.setattr(costs, "CELL_SECONDS", 0.0)
    assert study.throughput is not None
    changed = {
        "prompts": 5,
        "batch_sizes": [2, 4],
        "cache_blocks": [4],
        "repeats": 2,
        "threads": 1,
        "max_new_tokens": 8,
        "linears": "stock",
        "replay": Replay(tokens_per_forward=1.8, max_new_tokens=9),
        "continuous": Continuous(slots=2, requests=7, shortest=2, longest=300),
    }
    made = study.throughput.model_copy(update=changed)
    return study.model_copy(update={"throughput": made})


def measured(study: Study, checkpoint: Path, folder: Path) -> list[dict[str, str]]:
    out = folder / "throughput.csv"
    throughput.measure(study, 0, checkpoint, checkpoint, out)
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_method_has_its_turns(
    small: Study, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = measured(small, checkpoint, tmp_path)
    assert all(set(row) == set(grid.COLUMNS) for row in rows)
    stages = [("grid", "model", size, MODEL) for size in ("2", "4")]
    stages += [("grid", "replayed", size, REPLAYED) for size in ("2", "4")]
    stages += [("batching", "replayed", "2", BATCHING)]
    expected = []
    for *where, methods in stages:
        for repeat in range(2):  # each begins with another method
            turns = methods[repeat:] + methods[:repeat]
            expected += [(*where, str(repeat), method) for method in turns]
    keys = ("part", "acceptance", "batch_size", "repeat")
    assert [(*(row[key] for key in keys), name(row)) for row in rows] == expected
    assert {path.name for path in tmp_path.iterdir()} == {
        "throughput.csv", "throughput.costs.json", "throughput.environment.json",
        "throughput.profile.csv",
    }  # fmt: skip
    out, err = capsys.readouterr()
    summary = json.loads(out.splitlines()[-1])
    assert set(summary) == {"grid model", "grid replayed", "batching replayed"}
    assert len(summary["grid model"]["4"]) == len(MODEL)
    assert summary["grid replayed"]["2"]["ar"]["vs_ar"] == 1
    assert "grid replayed, 4 rows, mars_cursor_auto: " in err
    environment = json.loads((tmp_path / "throughput.environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["interruptions"] == 0
    assert environment["linears"] == "stock"
    assert "the model has 256" in environment["positions"]  # 300 tokens are forced beyond them


def test_every_column_is_documented() -> None:
    assert tuple(THROUGHPUT) == grid.COLUMNS


def test_rows_add_up(small: Study, checkpoint: Path, tmp_path: Path) -> None:
    rows = measured(small, checkpoint, tmp_path)
    for row in rows:
        seconds, tokens = float(row["seconds"]), int(row["tokens"])
        assert float(row["tokens_per_s"]) == pytest.approx(tokens / seconds, rel=0.05)
        assert int(row["model_tokens"]) >= int(row["model_forwards"]) > 0
        assert 0 < float(row["first_token_seconds"]) <= float(row["prefill_seconds"]) + 1e-4
        assert float(row["gflops_per_s"]) > 0
        assert float(row["peak_gbytes_per_s"]) > 0
        assert (row["tau"] == "0.95") == (row["acceptance"] == "model" and row["draft"] != "")
        if not row["draft"]:
            assert float(row["tokens_per_forward"]) == 1
    ones = [row for row in rows if row["acceptance"] == "model" and not row["draft"]]
    assert len({row["tokens"] for row in ones}) == 1
    replayed = [row for row in rows if (row["part"], row["acceptance"]) == ("grid", "replayed")]
    assert {int(row["tokens"]) for row in replayed} == {5 * 9}
    # the same draws whatever the batch; the order of the slots changes none of them
    counts = Counter((name(row), row["forwards"]) for row in replayed if row["draft"] == "B")
    assert len(counts) == 4
    peaks = Counter((row["batch_size"], name(row), row["peak_memory_mb"]) for row in replayed)
    assert set(peaks.values()) == {2}  # of a method, not of the process: the same in each repeat
    peak = {(size, method): float(mb) for size, method, mb in peaks}
    assert list(peak.values()) != sorted(peak.values())  # it falls again
    assert all(peak["2", method] < peak["4", method] for method in REPLAYED)
    batching = [row for row in rows if row["part"] == "batching"]
    assert len({row["tokens"] for row in batching}) == 1
    assert len({row["forwards"] for row in batching if row["draft"] == "B"}) == 1


class Clock:
    """Counts runs; raises before a given one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.last = 0, 10**9
        self.error: BaseException = KeyboardInterrupt()
        self._time = grid._time
        monkeypatch.setattr(grid, "_time", self)

    def __call__(self, *arguments: Any) -> Any:
        if self.runs == self.last:
            raise self.error
        self.runs += 1
        return self._time(*arguments)


def test_the_profile_says_where_a_forwards_time_goes(
    small: Study, checkpoint: Path, tmp_path: Path
) -> None:
    measured(small, checkpoint, tmp_path)
    with (tmp_path / "throughput.profile.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [(size, m) for size in ("2", "4") for m in ("generate", "ar", "mars cursor")]
    assert [(row["batch_size"], name(row)) for row in rows] == expected
    for row in rows:
        assert row["acceptance"] == "replayed"
        assert min(float(row[f"{kind}_ms"]) for kind in ("linear", "attention", "other")) > 0
        assert float(row["ms"]) > 0
    wide = {row["batch_size"]: row for row in rows if row["method"] == "mars"}
    thin = {row["batch_size"]: row for row in rows if row["method"] == "ar"}
    for size, row in wide.items():
        columns = [int(r["model_tokens"]) / int(r["model_forwards"]) for r in (row, thin[size])]
        assert columns[0] > columns[1]  # a draft rides along


def event(key: str, kind: DeviceType, cpu: float, device: float) -> SimpleNamespace:
    """As the profiler's, times in microseconds."""
    return SimpleNamespace(
        key=key, device_type=kind, self_cpu_time_total=cpu, self_device_time_total=device
    )


def test_a_kernel_is_counted_once_with_the_operation_that_started_it() -> None:
    seen = [
        event("aten::addmm", DeviceType.CPU, 10, 3000),
        event("ampere_bf16_gemm", DeviceType.CUDA, 0, 3000),  # of the line above
        event("aten::_scaled_dot_product_flash_attention", DeviceType.CPU, 20, 2000),
        event("flash_fwd_kernel", DeviceType.CUDA, 0, 2000),
        event("aten::mul", DeviceType.CPU, 30, 500),
        event("elementwise_kernel", DeviceType.CUDA, 0, 500),
    ]
    assert profile._by_kind(seen, "cuda") == {"linear": 3.0, "attention": 2.0, "other": 0.5}
    cpu = profile._by_kind([one for one in seen if one.device_type == DeviceType.CPU], "cpu")
    assert cpu == pytest.approx({"linear": 0.01, "attention": 0.02, "other": 0.03})


def test_an_interrupted_grid_goes_on(
    small: Study, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.last = 21
    with pytest.raises(KeyboardInterrupt):
        measured(small, checkpoint, tmp_path)
    (partial,) = tmp_path.iterdir()
    kept = [json.loads(line) for line in partial.read_text().splitlines()]
    kept = [line["value"] for line in kept if line.get("key", "").startswith("run: ")]
    assert len(kept) == 21
    with partial.open("a") as file:
        file.write('{"key": "run: torn')
    clock.last = 10**9
    rows = measured(small, checkpoint, tmp_path)
    assert clock.runs == len(rows) == 2 * (2 * len(MODEL) + 2 * len(REPLAYED) + len(BATCHING))
    before = [{column: str(value) for column, value in row.items()} for row in kept]
    assert rows[:21] == before
    environment = json.loads((tmp_path / "throughput.environment.json").read_text())
    assert environment["interruptions"] == 1
    assert not partial.exists()


def test_runs_of_other_settings_are_not_used(
    small: Study, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.last = 3
    with pytest.raises(KeyboardInterrupt):
        measured(small, checkpoint, tmp_path)
    assert small.throughput is not None
    other = small.throughput.model_copy(update={"max_new_tokens": 7})
    clock.runs, clock.last = 0, 4
    with pytest.raises(KeyboardInterrupt):
        measured(small.model_copy(update={"throughput": other}), checkpoint, tmp_path)
    read = grid._prompts
    monkeypatch.setattr(grid, "_prompts", lambda *which: read(*which)[::-1])
    clock.runs, clock.last = 0, 10**9
    rows = measured(small.model_copy(update={"throughput": other}), checkpoint, tmp_path)
    assert clock.runs == len(rows)


def test_whatever_is_timed_ran_before_where_it_is_compiled() -> None:
    """Of each shape, so of each batch; else the first says enough."""
    decoded: list[tuple[int, int]] = []

    class Decoder:
        work = Work()

        def generate(self, requests: Sequence[Request], slots: int | None = None) -> list[Any]:
            decoded.append((len(requests), requests[0].max_new_tokens))
            return []

    batches = tuple((first, (Request((3,), 9),) * rows) for first, rows in ((0, 3), (3, 2)))
    timed = [[(3, 1), (2, 1), (3, 9), (2, 9)], [(3, 1), (2, 1), (5, 9)]]
    for method, expected in zip(("mars", "ar"), timed, strict=True):
        for compiled in (True, False):
            made = Method(
                method, "cursor", Decoder(), None, "", "stock",
                continuous=method == "ar", compiled=compiled,
            )  # fmt: skip
            stage = Stage("grid", "replayed", 3, 9, batches, (made,))
            decoded.clear()
            grid._warm_up_all(stage, "cpu")
            assert decoded == (expected if compiled else [(3, 1), (3, 9)])
            decoded.clear()
            grid._time(made, batches, "cpu")
            assert decoded == expected


def test_the_summary_has_the_ratios_of_the_tables(
    small: Study, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    measured(small, checkpoint, results / "seed0")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    columns = ["speedup", "vs_generate", "vs_generate_static", "vs_ar", "vs_released"]
    columns += ["vs_better", "efficiency"]
    labels = {
        "generate": "generate", "generate_static": "generate_static", "ar": "ar",
        "released_4": "released", "mars_none": "none", "mars_block_4": "block",
        "mars_cursor": "cursor", "mars_cursor_auto": "auto",
    }  # fmt: skip
    rows = build("replay", small, results).sections[0].rows
    assert len(rows) == 2 * len(labels)
    for row in rows:
        [name] = [name for name, kind in labels.items() if LABELS[kind] == row["model"]]
        made = found["grid replayed"][str(row["batch_size"])][name]
        assert SHORT[made["over"]] == row["opponent"]
        for column in columns:
            if (value := row.get(column)) is None:
                assert column not in made
            else:
                assert made[column] == pytest.approx(value.value, abs=2e-3)
    for row in build("batching", small, results).sections[0].rows:
        name = next(n for n, kind in labels.items() if LABELS[kind] == row["model"])
        made = found["batching replayed"]["2"][name]
        assert made["continuous_vs_static"] == pytest.approx(row["ratio"].value, abs=2e-3)


def test_errors_are_errors(
    small: Study, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.last, clock.error = 5, RuntimeError("broken method")
    with pytest.raises(RuntimeError, match="broken method"):
        measured(small, checkpoint, tmp_path)
    assert not (tmp_path / "throughput.csv").exists()
    assert small.throughput is not None
    without = small.model_copy(update={"throughput": None})
    with pytest.raises(EvaluationError, match="no throughput section"):
        measured(without, checkpoint, tmp_path)
    many = small.throughput.model_copy(update={"prompts": 10**6})
    with pytest.raises(EvaluationError, match=r"throughput\.prompts is 1000000, but toy_gsm8k has"):
        measured(small.model_copy(update={"throughput": many}), checkpoint, tmp_path)


def test_replayed_acceptance_alone_needs_no_thresholds(
    small: Study, checkpoint: Path, tmp_path: Path
) -> None:
    assert small.throughput is not None
    made = small.throughput.model_copy(
        update={"thresholds": [], "continuous": None, "repeats": 1, "batch_sizes": [4]}
    )
    rows = measured(small.model_copy(update={"throughput": made}), checkpoint, tmp_path)
    assert [name(row) for row in rows] == REPLAYED


def test_block_caches_are_compared_at_equal_blocks(
    small: Study, checkpoint: Path, tmp_path: Path
) -> None:
    """At replayed acceptance ours is there to be held against the algorithm as released."""
    assert small.throughput is not None
    changed = {"thresholds": [], "continuous": None, "repeats": 1, "batch_sizes": [2]}
    made = small.throughput.model_copy(update={**changed, "cache_blocks": [4, 32, 256]})
    rows = measured(small.model_copy(update={"throughput": made}), checkpoint, tmp_path)
    blocks = {name(row): row["cache_block"] for row in rows if row["cache_block"]}
    assert blocks == {"released block": "32", "mars block": "32"}


def test_lengths_are_log_uniform_and_the_same_for_all() -> None:
    part = Continuous(slots=8, requests=4000, shortest=16, longest=256)
    prompts = [(1, 2), (3,)]
    asked = continuous_requests(part, prompts, seed=0)
    assert asked == continuous_requests(part, prompts, seed=0)
    assert asked != continuous_requests(part, prompts, seed=1)
    lengths = sorted(request.max_new_tokens for request in asked)
    assert (lengths[0], lengths[-1]) == (16, 256)
    assert abs(lengths[2000] - 64) < 4  # the middle of 16 and 256, on a logarithmic scale
    assert {request.prompt_ids for request in asked} == set(prompts)


def test_a_partial_file_keeps_whole_lines_only(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "x.csv"
    partial = Partial(out, "one")
    partial.keep("a", {"seconds": 1.5})
    partial.begin_session()
    partial.path.write_text(partial.path.read_text() + '{"key": "b", "val')
    again = Partial(out, "one")
    assert "a" in again
    assert "b" not in again
    assert again["a"] == {"seconds": 1.5}
    again.keep("b", 2)
    assert Partial(out, "one")["b"] == 2
    assert "a" not in Partial(out, "two")


def test_the_profiler_is_silent_behind_the_command_line() -> None:
    """It would write two lines for every method whose memory is counted."""
    script = (
        "from mars import cli\n"
        "cli.main(['config', 'config/quick.yaml'])\n"
        "import torch\n"
        "with torch.profiler.profile(): torch.ones(3).sum()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "profiler_start" not in done.stdout + done.stderr
