"""Stands in for SLURM's commands: a link to this file for each, its name says which.

``sbatch`` notes what is submitted and runs it, or where ``FAKE_SLURM_MAKES`` knows the job makes
its files at once. ``FAKE_SLURM_STOPS`` names a job that its time limit stops the first time: the
step is sent what ``--signal`` says, as SLURM does, once the file of the same name is there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_SLURM"])


def sbatch(words: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--job-name", "--output", "--comment", "--mem", "--wrap", "-t", "-D", "-A", "-p"):
        parser.add_argument(flag)
    known, rest = parser.parse_known_args(words)
    number = _number()
    asked = {**vars(known), "rest": rest, "number": number}
    with (HOME / "submitted.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asked) + "\n")
    makes = json.loads(os.environ["FAKE_SLURM_MAKES"])
    for job, files in makes.items():
        if known.comment.startswith(job):
            for path in map(Path, files):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(job)
            (HOME / f"{number}.state").write_text("COMPLETED")
            break
    else:
        run = [sys.executable, __file__, "run", str(number), json.dumps(asked)]
        log = Path(known.output.replace("%j", str(number)))
        with log.open("wb") as said:
            subprocess.Popen(run, stdout=said, stderr=said, start_new_session=True)
    print(number)


def _number() -> int:
    """A number that no other submission has, with its job in state RUNNING."""
    for number in range(1, 1000):
        try:
            with (HOME / f"{number}.state").open("x") as file:
                file.write("RUNNING")
            return number
        except FileExistsError:
            continue
    raise RuntimeError("too many submissions")


def run(number: str, asked: dict) -> None:
    gpus = [word.removeprefix("--gpus=") for word in asked["rest"] if word.startswith("--gpus=")]
    environment = {**os.environ, "SLURM_JOB_ID": number}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(int(gpus[0]))))
    script = subprocess.Popen(["/bin/sh", "-c", asked["wrap"]], env=environment, cwd=asked["D"])
    stopped = HOME / "stopped"
    stops = os.environ.get("FAKE_SLURM_STOPS", "-")
    if asked["comment"].startswith(f"rule_{stops}") and not stopped.exists():
        while not Path(asked["D"], f"{stops}.started").exists() and script.poll() is None:
            time.sleep(0.1)
        stopped.touch()
        told = re.search(r"--signal=(\w+)@\d+", " ".join(asked["rest"]))
        if told:
            step = int((HOME / f"{number}.step").read_text())
            os.killpg(step, getattr(signal, f"SIG{told[1]}"))
        script.wait()
        (HOME / f"{number}.state").write_text("TIMEOUT")
        return
    done = script.wait()
    (HOME / f"{number}.state").write_text("FAILED" if done else "COMPLETED")


def srun(words: list[str]) -> None:
    os.setsid()
    (HOME / f"{os.environ['SLURM_JOB_ID']}.step").write_text(str(os.getpid()))
    first = next(i for i, word in enumerate(words) if not word.startswith("-"))
    with (HOME / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(words[:first]) + "\n")
    os.execvp(words[first], words[first:])


def sacct(words: list[str]) -> None:
    if "-nu" in words:  # which account a user has
        print("tester")
        return
    for state in sorted(HOME.glob("*.state")):
        print(f"{state.stem}|{state.read_text()}")


if __name__ == "__main__":
    match Path(sys.argv[0]).name, sys.argv[1:]:
        case _, ["run", number, asked]:
            run(number, json.loads(asked))
        case "sbatch", words:
            sbatch(words)
        case "srun", words:
            srun(words)
        case "sacct", words:
            sacct(words)
        case "sacctmgr", _:
            print("tester")
        case "sinfo", _:
            print("main*")
        case "scontrol", _:
            print("MinJobAge = 300 sec\nMaxArraySize = 1001")
