"""One evaluation over several processes: each decodes a share of the documents, on its own GPUs.

Every process writes records of its own, which are taken into the common ones when all have ended;
then everything is scored as one process would have done it. A share is every N-th of the documents
that have no record yet, longest prompts first, so that shares take about as long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mars.config import Study
from mars.evaluation.benchmarks import load_study, requests
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import RecordStore, read_records
from mars.evaluation.source import EvaluationError, choose_device, open_checkpoint


@dataclass(frozen=True)
class Share:
    """The ``index``-th of ``of`` shares, from 0."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """From ``I/N``. Raises EvaluationError."""
        index, _, of = text.partition("/")
        if not (index.isdigit() and of.isdigit() and int(index) < int(of)):
            raise EvaluationError(f"--share {text}: give I/N, with I from 0 to N − 1")
        return cls(int(index), int(of))


def decode_share(
    study: Study, variant: str, checkpoint: Path | str, out: Path, share: Share
) -> None:
    """Decode one share of the documents of every benchmark and setting; nothing is scored.

    Args:
        study, variant: what is evaluated; checkpoint: of the variant.
        out: the run's folder; the share's records lie beside those of the run.
        share: which documents.
    """
    source = open_checkpoint(checkpoint, study.training.dtype, choose_device())
    made = study.evaluation
    lm: MarsLM | None = None
    for benchmark in load_study(study).values():
        for settings in study.decodings(variant, benchmark.name):
            path = out / "evaluation" / benchmark.name / f"{settings.id}.jsonl"
            if lm is None:
                asked = settings.model_dump()
                lm = MarsLM(source, made.batch_size, made.max_new_tokens, **asked)
            lm.use(
                settings,
                RecordStore(_share_file(path, share.index)),
                benchmark.name,
                benchmark.versions,
                multiturn=benchmark.multiturn,
                readers=benchmark.readers,
            )
            wanted = requests(lm, benchmark, made.limit_of(benchmark.name))
            lm.decode_share(wanted, share.index, share.of, known=RecordStore(path))


def _share_file(path: Path, index: int | str) -> Path:
    return path.with_name(f"{path.stem}.share{index}.jsonl")


def take_in_shares(path: Path) -> RecordStore:
    """The records of a benchmark and setting, with those that processes left beside them."""
    store = RecordStore(path)
    for file in sorted(path.parent.glob(_share_file(path, "*").name)):
        found = {record.fingerprint: record for record in read_records(file)}
        store.add(record for key, record in found.items() if key not in store)
        file.unlink()
    return store


def take_in_leftovers(out: Path) -> None:
    """Take in what the processes of an interrupted evaluation left in a run's folder."""
    for file in sorted((out / "evaluation").glob(f"*/{_share_file(Path('*'), '*').name}")):
        take_in_shares(file.with_name(f"{file.name.rpartition('.share')[0]}.jsonl"))


def processes(wanted: int, gpus: Sequence[str], each: int) -> int:
    """How many processes there will be: no more than have ``each`` GPUs, where there are GPUs."""
    return min(wanted, max(1, len(gpus) // each)) if gpus else wanted


def run_shares(
    command: Sequence[str],
    count: int,
    gpus: Sequence[str],
    each: int,
    environment: Mapping[str, str],
) -> None:
    """Run a command as ``count`` processes, each told its share, and wait for all of them.

    Whatever they leave undone, whoever takes their records in decodes.

    Args:
        command: ``--share I/N`` is put after it.
        count: N.
        gpus: each process sees ``each`` of them, and no two the same, where there are any.
        environment: more variables for the processes.
    """
    started = []
    for index in range(count):
        own = {**os.environ, **environment}
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index * each : (index + 1) * each])
        if index:  # one bar is enough, and stands for all: shares take about as long
            own["TQDM_DISABLE"] = "1"
        started.append(subprocess.Popen([*command, "--share", f"{index}/{count}"], env=own))
    try:
        for index, process in enumerate(started):
            if status := process.wait():
                print(
                    f"mars: process {index + 1} of {count} ended with status {status}; what it "
                    "left undone is done by this one",
                    file=sys.stderr,
                )
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.terminate()
        for process in started:
            process.wait()
