"""A results set of the paper's size, all of it MADE UP: 21,015 documents × 100 variants and τ.

It is written as ``mars tidy`` would leave it, without the JSONL files (several gigabytes): texts,
accepted counts and confidences of every record, a wall-clock grid, the cost of training. What all
of it took is printed, and held to the bounds that the project has set itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mars.analysis import tidy
from mars.config import Study, dump_study, parse_study

from . import synthetic

DOCUMENTS = {
    "ifeval": 541,
    "bbh": 6511,
    "mmlu_pro": 12032,
    "gpqa": 448,
    "gsm8k": 1319,
    "humaneval": 164,
}
"""Of the real benchmarks."""
SUB_TASKS = {"bbh": 27, "mmlu_pro": 14}
ROOT = Path(__file__).parents[2]


def study() -> Study:
    """Two scales; MARS read at seven τ on every benchmark: 100 variants and τ."""
    raw = synthetic.embedded().model_dump(mode="json")
    raw |= {"study": "large"}
    raw["throughput"]["benchmark"] = "gsm8k"
    columns = raw["evaluation"]["benchmarks"]
    raw["evaluation"] |= {
        "benchmarks": {name.removeprefix("toy_"): made for name, made in columns.items()},
        "panels": ["gsm8k", "humaneval"],
        "sweep": "full",
        "acceptance": None,
        "jacobi": None,
    }
    variants = raw["variants"]
    both = ("ar_sft_10ep", "block_diffusion_b4", "mars_no_sft_b4", "mars_no_sft_b8")
    for name in both:
        variants[name]["scales"] = None
    variants["block_diffusion_own_b4"] = {
        **variants["block_diffusion_b4"],
        "alignment": "own",
        "scales": ["toy-s"],
    }
    variants["mars_no_sft_stream_b8"] = {**variants["mars_no_sft_stream_b4"], "block_size": 8}
    return parse_study(raw)


def write(made: Study, results: Path) -> int:
    """The results folder; returns how many records it has."""
    rng = np.random.default_rng(0)
    ease = {name: rng.random(n) for name, n in DOCUMENTS.items()}
    length = {name: rng.integers(20, 257, n) for name, n in DOCUMENTS.items()}
    parts = []
    results.mkdir()
    long = pq.ParquetWriter(
        results / tidy.GENERATIONS, pa.schema(tidy.SECOND), compression="zstd", compression_level=1
    )
    with long as generations:
        for scale, variant in made.runs():
            rows = []
            for benchmark in made.evaluation.benchmarks:
                for d in made.decodings(variant, benchmark):
                    truth = synthetic.skill(made, scale, variant, f"toy_{benchmark}", d) / 100
                    right = 0.8 * ease[benchmark] + 0.2 * rng.random(DOCUMENTS[benchmark]) < truth
                    pace = synthetic.tokens_per_forward(f"toy_{benchmark}", d)
                    answers = answer(rng, length[benchmark], right, pace, d.block_size)
                    answers["output"] = texts(answers, variant.startswith("mars_b"))
                    row, first, second = cell(made, scale, variant, benchmark, d, answers)
                    rows.append(row)
                    parts.append(first)
                    generations.write_table(second, row_group_size=len(second))
            synthetic.write_csv(results / "seed0" / scale / variant / "evaluation.csv", rows)
            if variant != "base":
                synthetic.write_training(made, results, 0, scale, variant)
        origin = {tidy.MADE_FROM: json.dumps(tidy.made_from(made, results)).encode()}
        generations.add_key_value_metadata(origin)
    synthetic.write_throughput(made, results, 0)
    synthetic.write_arrivals(made, results, 0)
    synthetic.write_training_cost(made, results, 0)
    (results / "config.yaml").write_text(dump_study(made))
    whole = pa.concat_tables(parts).unify_dictionaries().replace_schema_metadata(origin)
    pq.write_table(whole, results / tidy.RECORDS, compression="zstd")
    return len(whole)


def answer(rng, length, right, pace: float, block_size: int) -> dict[str, Any]:
    """Columns of made-up answers of ``length`` tokens (documents,), accepted ``pace`` at a time."""
    ends, total = np.cumsum(length), int(length.sum())
    last = rng.integers(0, 256, total, dtype="uint8") < 256 / pace  # the last token of a forward
    last[block_size - 1 :: block_size] = last[ends - 1] = True
    taken = np.flatnonzero(last) + 1
    accepted = np.diff(taken, prepend=0).astype("int16")
    forwards = np.diff(np.searchsorted(taken, ends, side="right"), prepend=0)
    confidence = CONFIDENCES[rng.integers(0, len(CONFIDENCES), total, dtype="uint8")]
    return {
        "score": right.astype(float),
        "tokens": length,
        "forwards": forwards,
        "least_confidence": np.minimum.reduceat(confidence, ends - length).astype(float),
        "accepted": ragged(accepted, forwards),
        "confidence": ragged(confidence, length),
    }


def texts(answers, wanted: bool) -> pa.Array:
    """What was answered: only of MARS with the SFT loss, whose texts the report shows."""
    if not wanted:
        return pa.nulls(len(answers["tokens"]), pa.string())
    many = zip(answers["tokens"], answers["score"], strict=True)
    return pa.array([said(int(n) - 1, i % 17, bool(right)) for i, (n, right) in enumerate(many)])


CONFIDENCES = np.linspace(1, 0.4, 128).astype("float32") ** np.float32(0.5)
said = cache(synthetic.text)
"""Texts repeat after 17 documents, so that each is made once."""


def ragged(values, lengths) -> pa.Array:
    """Values one after the other as lists of the given lengths."""
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(lengths)).astype("int32"), values)


def cell(made, scale, variant, benchmark, d, answers):
    """A row of evaluation.csv, its records, and what is long about them."""
    n = DOCUMENTS[benchmark]
    names = [f"{benchmark}_{i}" for i in range(SUB_TASKS.get(benchmark, 1))]
    tasks = np.arange(n) % len(names)
    name = f"seed0/{scale}/{variant}/evaluation/{benchmark}/{d.id}.jsonl"
    of_file = {"study": made.study, "seed": 0, "scale": scale, "variant": variant}
    of_file |= {"benchmark": benchmark, "decoder": d.decoder, "block_size": d.block_size}
    of_file |= {"tau": d.tau, "rule": d.rule, "cache": d.cache, "checkpoint": "0" * 12}
    of_file |= {"records": name}
    columns = answers | {
        "task": pa.DictionaryArray.from_arrays(pa.array(tasks.astype("int32")), names),
        "doc_id": np.arange(n) // len(names),
        "repeat": np.zeros(n),
        "truncated": np.zeros(n, dtype=bool),
        "finish": pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, "int32")), ["end_of_turn"]),
        "seconds": np.full(n, 0.1),
    }
    first, second = (
        pa.Table.from_arrays(
            [
                as_array(columns[name], kind)
                if name in columns
                else tidy.constant(of_file.get(name), n, kind)
                for name, kind in wanted.items()
            ],
            schema=pa.schema(wanted),
        )
        for wanted in (tidy.FIRST, tidy.SECOND)
    )
    right = answers["score"]
    by_task = [100 * right[tasks == i].mean() for i in range(len(names))]
    total, steps = int(answers["tokens"].sum()), int(answers["forwards"].sum())
    metric = made.evaluation.benchmarks[benchmark].metric
    row = of_file | {"metric": metric, "metrics": "{}", "score": float(np.mean(by_task))}
    row |= {"documents": n, "tokens": total, "forwards": steps, "tokens_per_forward": total / steps}
    row |= {"truncated": 0.0, "seconds": 0.1 * n}
    return row, first, second


def as_array(values, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(values.astype(kind.to_pandas_dtype()))


MEASURE = """
import json, resource, sys, time
from pathlib import Path
from mars.analysis import load
from mars.analysis.figures import FIGURES, data, draw
from mars.analysis.parts import applies
from mars.analysis.report import write_report
from mars.analysis.tables import TABLES, write_table
from mars.analysis.tidy import is_fresh, locate
study, results = locate(sys.argv[1])
out = Path(sys.argv[2])
assert is_fresh(study, results, results / "records.parquet")
assert is_fresh(study, results, results / "generations.parquet")
told = {}
def timed(name, work):
    clock, cpu = time.perf_counter(), time.process_time()
    done = work()
    told[name] = [round(time.perf_counter() - clock, 1), round(time.process_time() - cpu, 1)]
    return done
told["records"] = len(timed("load", lambda: load(results)))
tables = [n for n in TABLES if applies(study, n)]
timed("tables and claims", lambda: [write_table(n, study, results, out) for n in tables])
figures = [n for n in FIGURES if applies(study, n)]
for n in figures:
    timed("figure " + n, lambda: draw(n, study, results, out / n))
timed("page", lambda: write_report(study, results, out, out / "index.html"))
told["peak memory (MB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
told["drawn"] = {n: len(data(n, study, results)) for n in figures}
print(json.dumps(told))
"""
"""Seconds by the clock, and of the CPU."""


@pytest.mark.slow
def test_a_results_set_of_the_papers_size_is_read_and_analysed(tmp_path, capsys):
    made, results = study(), tmp_path / "large"
    cells = sum(len(made.decodings(v, "gsm8k")) for _, v in made.runs())
    assert cells == 100
    written = write(made, results)
    assert written == 100 * 21_015
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(results), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        print(f"\nmade-up results of the paper's size, [seconds, CPU seconds]: {told}")
    assert told["records"] == written
    assert all(told["drawn"].values())
    # of the CPU: the machine may be busy with other tests
    spent = {name: took[1] for name, took in told.items() if isinstance(took, list)}
    assert spent["load"] < 5
    assert sum(spent.values()) < 180
    assert told["peak memory (MB)"] < 4096
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count('<article class="example">') == 6
    table2 = pd.read_csv(tmp_path / "out" / "table2.csv")
    ours = table2[(table2["Source"] == "ours") & (table2["section"] == "Scores (%)")]
    assert ours["Avg_low"].notna().all()
