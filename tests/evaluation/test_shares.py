"""Several processes give what one gives: no document twice, none left out."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mars import cli, jobs
from mars.config import dump_study, parse_study
from mars.decoding import Generation
from mars.decoding.contract import MemoryShortageError
from mars.evaluation import shares
from mars.evaluation.memory import within_memory
from mars.evaluation.records import RecordStore, read_records
from mars.evaluation.run import evaluate_variant
from mars.evaluation.source import EvaluationError, Source
from mars.models import devices

RUN = (0, "toy-s", "mars_b4")


@pytest.fixture
def small(study: Any) -> Any:
    """Two benchmarks, one of them a group, at two thresholds, in float64."""
    raw = study.model_dump(mode="json")
    made = raw["evaluation"]
    made["benchmarks"] = {n: made["benchmarks"][n] for n in ("toy_gsm8k", "toy_bbh")}
    made |= {"panels": ["toy_gsm8k"], "limit": 3, "max_new_tokens": 6, "thresholds": [1.0, 0.5]}
    raw |= {"throughput": None, "training_cost": None}
    raw["training"]["dtype"] = "float64"
    return parse_study(raw)


def table(out: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader((out / "evaluation.csv").open()))
    return [{k: v for k, v in row.items() if k not in ("seconds", "records")} for row in rows]


def records(out: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for file in sorted((out / "evaluation").glob("*/*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[f"{file.parent.name}/{file.name}"] = [line | {"seconds": 0} for line in lines]
    return found


@pytest.mark.slow
def test_two_processes_give_what_one_gives(small, checkpoint, tmp_path, capfd):
    one, two = (tmp_path / n / "seed0" / "toy-s" / "mars_b4" for n in ("one", "two"))
    evaluate_variant(small, *RUN, checkpoint, one)
    raw = small.model_dump(mode="json")
    raw["evaluation"]["processes"] = 2
    file = tmp_path / "study.yaml"
    file.write_text(dump_study(parse_study(raw)))
    words = ["--config", str(file), "--seed", "0", "--scale", "toy-s", "--variant", "mars_b4"]
    words += ["--checkpoint", str(checkpoint), "--out", str(two)]
    assert cli.main(["evaluate", *words]) == 0
    assert records(two) == records(one)
    assert table(two) == table(one)
    assert "ended with status" not in capfd.readouterr().err


def asked_of(fake: Any) -> list[tuple[int, ...]]:
    return [request.prompt_ids for batch in fake.batches for request in batch]


@pytest.fixture
def shared(small, source, fake, monkeypatch, tmp_path) -> Any:
    """Runs a share, or the whole, with decoders that need no model."""
    for module in ("shares", "run"):
        monkeypatch.setattr(f"mars.evaluation.{module}.open_checkpoint", lambda *_, **__: source)
    out = tmp_path / "seed0" / "toy-s" / "mars_b4"

    def run(share: shares.Share | None) -> list[tuple[int, ...]]:
        fake.batches.clear()
        if share is None:
            evaluate_variant(small, *RUN, "unused", out)
        else:
            shares.decode_share(small, "mars_b4", "unused", out, share)
        return asked_of(fake)

    run.out = out  # type: ignore[attr-defined]
    return run


def test_shares_are_disjoint_and_leave_nothing(shared):
    parts = [shared(shares.Share(index, 3)) for index in range(3)]
    left = sorted((shared.out / "evaluation").glob("*/*.share*.jsonl"))
    assert len(left) == 12  # two benchmarks, two thresholds, three shares
    assert shared(None) == []  # nothing was left to decode
    assert not list((shared.out / "evaluation").glob("*/*.share*"))
    total = sum(len(file) for file in records(shared.out).values())
    assert sum(map(len, parts)) == total == 2 * (3 + 7 * 3)
    assert max(map(len, parts)) - min(map(len, parts)) <= 4  # one for each file


def test_what_a_dead_process_left_is_decoded_once(shared, capsys):
    first = shared(shares.Share(0, 2))
    rest = shared(None)
    total = sum(len(file) for file in records(shared.out).values())
    assert len(first) + len(rest) == total
    for file in records(shared.out).values():
        assert len({line["fingerprint"] for line in file}) == len(file)


def test_an_interrupted_evaluation_is_taken_in_before_it_is_shared_anew(shared):
    first = shared(shares.Share(1, 4))
    shares.take_in_leftovers(shared.out)
    assert not list((shared.out / "evaluation").glob("*/*.share*"))
    again = [shared(shares.Share(index, 2)) for index in range(2)]
    shared(None)
    total = sum(len(file) for file in records(shared.out).values())
    assert len(first) + sum(map(len, again)) == total


def test_a_record_of_two_shares_is_kept_once(shared, tmp_path):
    shared(shares.Share(0, 1))
    file = next((shared.out / "evaluation").glob("toy_gsm8k/*.share0.jsonl"))
    path = file.with_name(file.name.replace(".share0", ""))
    file.with_name(file.name.replace("share0", "share1")).write_bytes(file.read_bytes())
    known = {record.fingerprint for record in read_records(file)}
    store = shares.take_in_shares(path)
    assert len(store) == len(known) == len(read_records(path)) == len(RecordStore(path))


@pytest.mark.parametrize(
    ("wanted", "gpus", "each", "count"),
    [
        *[(1, "", 1, 1), (4, "", 1, 4), (4, "01", 1, 2), (2, "012", 1, 2), (8, "3", 1, 1)],
        *[(4, "", 2, 4), (2, "0123", 2, 2), (4, "0123", 2, 2), (2, "012", 2, 1), (1, "0", 2, 1)],
    ],
)
def test_no_two_processes_share_a_gpu(wanted, gpus, each, count):
    assert shares.processes(wanted, list(gpus), each) == count


@pytest.mark.parametrize(
    ("each", "seen"), [(1, ("5!", "GPU-a!")), (2, ("5,GPU-a!", "6,7!"))], ids=["one", "two"]
)
def test_each_process_sees_its_own_gpus(tmp_path, capfd, each, seen):
    script = (
        "import os, pathlib, sys; name = sys.argv[-1].replace('/', '-'); "
        f"pathlib.Path({str(tmp_path)!r}, name).write_text("
        "os.environ['CUDA_VISIBLE_DEVICES'] + os.environ['MORE']); "
        "sys.exit(name.startswith('1'))"
    )
    command, gpus = [sys.executable, "-c", script], ["5", "GPU-a", "6", "7"]
    shares.run_shares(command, 2, gpus, each, {"MORE": "!"})
    found = {f.name: f.read_text() for f in tmp_path.iterdir()}
    assert found == dict(zip(("0-2", "1-2"), seen, strict=True))
    assert "process 2 of 2 ended with status 1; what it left undone" in capfd.readouterr().err


# -------------------------------------------------------------------- models that need several


@pytest.fixture
def on_gpus(small, checkpoint, tmp_path, monkeypatch) -> Any:
    """Runs a command of a study on a machine with made-up GPUs that are too small for its model.

    Noted is what each process that would decode or measure sees, and whether it spreads the model.
    """
    monkeypatch.setattr(jobs.tempfile, "tempdir", str(tmp_path))
    for name in ("MARS_CLAIMED_GPUS", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # (so that what the claim sets is taken back)
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    visible = lambda: len(jobs.visible_gpus())  # noqa: E731
    card = type("Card", (), {"total_memory": 100})
    monkeypatch.setattr(torch.cuda, "device_count", visible)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    seen = []

    def note(*_: Any) -> None:
        spread = devices.spreads(Path(checkpoint), torch.float32, "cuda")
        seen.append((os.environ["CUDA_VISIBLE_DEVICES"], spread))

    class Process:
        def __init__(self, words: list[str], env: dict[str, str]) -> None:
            with pytest.MonkeyPatch.context() as inside:
                for name in ("CUDA_VISIBLE_DEVICES", "MARS_CLAIMED_GPUS"):
                    inside.setenv(name, env[name])
                assert cli.main(words[3:]) == 0

        wait = terminate = lambda self: 0

    monkeypatch.setattr(shares.subprocess, "Popen", Process)
    monkeypatch.setattr(shares, "decode_share", note)
    monkeypatch.setattr("mars.evaluation.run.evaluate_variant", lambda *_: seen or note())
    monkeypatch.setattr("mars.evaluation.throughput.measure", note)
    monkeypatch.setattr("mars.evaluation.throughput.arrivals.measure_arrivals", note)

    def run(command: str, *words: str, **evaluation: int) -> list[tuple[str, bool]]:
        raw = small.model_dump(mode="json")
        raw["evaluation"] |= evaluation
        file = tmp_path / "study.yaml"
        file.write_text(dump_study(parse_study(raw)))
        words = ("--config", str(file), "--seed", "0", *words)
        words += ("--checkpoint", str(checkpoint), "--out", str(tmp_path / "out"))
        assert cli.main([command, *words]) == 0
        return seen

    return run


RUN_WORDS = ("--scale", "toy-s", "--variant", "mars_b4")


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ({}, [("0", False)]),
        ({"gpus_per_process": 2}, [("0,1", True)]),
        ({"processes": 2}, [("0", False), ("1", False)]),
        ({"processes": 2, "gpus_per_process": 2}, [("0,1", True), ("2,3", True)]),
    ],
)
def test_a_process_has_the_gpus_that_its_model_is_spread_over(on_gpus, asked, seen):
    assert on_gpus("evaluate", *RUN_WORDS, **asked) == seen


@pytest.mark.parametrize(
    ("command", "words"), [("throughput", ("--ar-checkpoint", "unused")), ("arrivals", ())]
)
def test_a_measurement_has_as_many_gpus_as_a_process(on_gpus, command, words):
    assert on_gpus(command, *words, processes=2, gpus_per_process=3) == [("0,1,2", True)]


@pytest.mark.parametrize("text", ["2/2", "a/2", "1", "-1/2", ""])
def test_a_share_that_is_none(text):
    with pytest.raises(EvaluationError, match="give I/N"):
        shares.Share.parse(text)


# ------------------------------------------------------------------------------- memory


class Narrow:
    """A decoder whose memory holds so many rows, and which says so in one of two ways."""

    def __init__(self, holds: int, error: type[Exception]) -> None:
        self.holds, self.error = holds, error
        self.decoded: list[int] = []

    def stream(self, requests: Any, rows: int) -> Any:
        for place, request in enumerate(requests):
            if rows > self.holds and place:  # the first fits, the others do not
                if self.error is MemoryShortageError:
                    raise MemoryShortageError("too many", self.holds)
                raise self.error("CUDA out of memory.\nTried to allocate 2 GiB")
            self.decoded.append(request)
            yield place, Generation([request], [1], "budget", [1.0])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryShortageError])
@pytest.mark.parametrize("holds", [1, 3, 8, 40])
def test_fewer_rows_go_on_where_memory_is_short(caplog, error, holds):
    narrow: Any = Narrow(holds, error)
    asked: Any = list(range(100, 125))
    made = dict(within_memory(narrow, asked, 32))
    assert [made[index].ids for index in range(25)] == [[request] for request in asked]
    assert sorted(narrow.decoded) == asked  # nothing twice
    for record in caplog.records:
        assert "\n" not in record.message
        assert "set evaluation.batch_size to" in record.message
    if caplog.records:
        assert int(caplog.records[-1].message.rsplit(" ", 1)[1]) <= holds


def test_not_even_one_row_is_one_line():
    class Nothing(Narrow):
        def stream(self, requests: Any, rows: int) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
            yield

    nothing: Any = Nothing(0, torch.OutOfMemoryError)
    with pytest.raises(EvaluationError, match=r"even with one row .*finished records are"):
        list(within_memory(nothing, [1, 2], 2))  # type: ignore[list-item]


def test_what_else_runs_out_of_memory_is_one_line(monkeypatch, capsys):
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(cli.commands, "dump_study", full)
    assert cli.main(["config", str(Path(__file__).parents[2] / "config" / "quick.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "out of GPU memory: lower evaluation.batch_size, throughput.batch_sizes" in line


def test_the_source_says_where_and_in_what_it_computes(checkpoint):
    from mars.evaluation.source import open_checkpoint

    source: Source = open_checkpoint(checkpoint, "auto", "cpu", generate=False)
    assert (source.dtype, source.device) == ("float32", "cpu")
