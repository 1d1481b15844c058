"""How often verdicts are wrong: studies of known truth, drawn and then judged as real ones are.

``python -m tests.analysis.error_rates`` prints the table of docs/statistics.md. Drawn are documents
(right or wrong, tokens, forwards), trainings of several seeds, and seconds; whatever follows is the
analysis itself. How records become documents, and CSV files runs, is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mars.analysis.claims import claims, judge
from mars.analysis.claims.measured import Measured
from mars.analysis.claims.verdict import REFUTED, REPRODUCED
from mars.analysis.documents import Documents
from mars.analysis.results import THROUGHPUT_COLUMNS, TRAINING_COST_COLUMNS
from mars.analysis.speed import AR, BLOCK, GENERATE, NONE, STATIC, Grid, Setting
from mars.analysis.summary import Cell, Summary
from mars.config import Decoding, Study, parse_study

from . import synthetic

DOCUMENTS = 70
"""Of each benchmark, as the embedded study's smallest have."""
TRIALS = 1000
REPEATS = 3
"""Of everything timed, as in the embedded study."""
NOISE = 0.03
"""Standard deviation of the logarithm of a time."""

Truth = Callable[[str, str, float], float]
"""(variant, benchmark, τ) → the true score, per cent."""


@dataclass(frozen=True)
class Case:
    """A truth at the edge of one condition of a claim, all else far within its own.

    Attributes:
        edge: what is at its edge, in words.
        truth, pace, jacobi: true scores, and tokens per forward below τ = 1 and of Jacobi.
        training_sd: of a variant over seeds: points of its score, the same on all benchmarks; per
            cent of MARS' speed, the same at all batch sizes.
        speeds: true speed of (method, batch size), where it is not as in ``SPEEDS``.
        overhead: true time of a step as released, over AR SFT's.
    """

    claim: int
    edge: str
    study: Study
    truth: Truth = lambda variant, benchmark, tau: 50.0
    pace: float = 1.8
    jacobi: float = 1.1
    training_sd: float = 0.0
    speeds: Mapping[tuple[str, int], float] = field(default_factory=dict)
    overhead: float = 2.1


# ------------------------------------------------------------------------------------- drawing

KEYS, TASKS = b"the same documents", np.zeros(DOCUMENTS, dtype=np.int8)


class Drawn(Summary):
    """A study's cells, drawn as they are asked for."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        # not the parent's: it would index frames, which there are none of, in each of the trials
        self.study, self._cells, self._known = case.study, {}, {}
        self._case, self._rng = case, rng
        benchmarks = list(case.study.evaluation.benchmarks)
        # documents are easy or hard for all models alike
        self._ease = dict(zip(benchmarks, rng.random((len(benchmarks), DOCUMENTS)), strict=True))
        self._trainings: dict[tuple[int, str], float] = {}

    def cells(
        self, scale: str, variant: str, benchmark: str, decoding: Decoding | None
    ) -> list[Cell]:
        if decoding is None:
            return []
        key = (scale, variant, benchmark, decoding.id)
        if key not in self._cells:
            self._cells[key] = [
                self._drawn(seed, variant, benchmark, decoding) for seed in self.study.seeds
            ]
        return self._cells[key]

    def _drawn(self, seed: int, variant: str, benchmark: str, d: Decoding) -> Cell:
        case, rng = self._case, self._rng
        if (seed, variant) not in self._trainings:
            self._trainings[seed, variant] = case.training_sd * rng.standard_normal()
        score = case.truth(variant, benchmark, d.tau) + self._trainings[seed, variant]
        right = 0.6 * self._ease[benchmark] + 0.4 * rng.random(DOCUMENTS) < threshold(score / 100)
        forwards = rng.integers(10, 30, DOCUMENTS)
        pace = case.jacobi if d.decoder == "jacobi" else case.pace if d.tau < 1 else 1.0
        eager = (pace - 1) * rng.gamma(4.0, 0.25, DOCUMENTS)  # some answers are easy to draft
        tokens = forwards + rng.poisson(forwards * eager)
        return Cell(
            seed=seed,
            score=100 * float(right.mean()),
            tokens_per_forward=float(tokens.sum() / forwards.sum()),
            documents=DOCUMENTS,
            truncated=0.0,
            records=Documents(KEYS, TASKS, 100.0 * right, tokens * 1.0, forwards * 1.0),
            weighting="equal",
        )


def _frame(columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})


NO_GRID, NO_COSTS = Grid(_frame(THROUGHPUT_COLUMNS)), _frame(TRAINING_COST_COLUMNS)

SHARES = np.linspace(0, 1, 1001)
SUMS = np.quantile(0.6 * SHARES[:, None] + 0.4 * np.linspace(0, 1, 101), SHARES)


def threshold(p: float) -> float:
    """Below this, 0.6 and 0.4 of two uniform numbers sum up with probability p."""
    return float(np.interp(p, SHARES, SUMS))


BATCHES = (4, 8, 16)
SPEEDS = {
    **{(GENERATE, batch): 1.0 for batch in BATCHES},
    **{(STATIC, batch): 1.0 for batch in BATCHES},
    **{(AR, batch): 1.0 for batch in BATCHES},
    **{(NONE, batch): 0.6 * 0.5**i for i, batch in enumerate(BATCHES)},
    **{(BLOCK, batch): 1.7 * 0.7**i for i, batch in enumerate(BATCHES)},
}
"""True speeds, as over AR's. The three AR methods are equal: any may turn out the fastest."""


class Timed(Grid):
    """Runs drawn around true speeds."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        runs = pd.MultiIndex.from_product(
            [case.study.seeds, range(REPEATS)], names=["seed", "repeat"]
        )
        shared = rng.normal(0, 0.2, len(runs))  # a slow repeat is slow for all
        trained = rng.normal(0, case.training_sd / 100, len(case.study.seeds)).repeat(REPEATS)
        self._runs = {}
        for (method, batch), speed in (SPEEDS | dict(case.speeds)).items():
            own = rng.normal(0, NOISE, len(runs)) + trained * (method in (NONE, BLOCK))
            key = Setting(method, 32 if method == BLOCK else None, batch)
            self._runs[key] = pd.DataFrame({"seconds": np.exp(shared + own) / speed}, runs)
        self.settings = list(self._runs)
        self._opponents = {
            batch: self.fastest([s for s in self.at(batch) if s.method in (GENERATE, STATIC, AR)])
            for batch in BATCHES
        }


def costs(case: Case, rng: np.random.Generator) -> pd.DataFrame:
    """What ``training_cost.csv`` would say."""
    made = case.study.training_cost
    assert made is not None
    assert made.released is not None
    methods = {"ar_sft": 1.0, "mars": 1.5, "ar_released": 1.2, "released": 1.2 * case.overhead}
    rows = [
        {"seed": seed, "repeat": repeat, "method": method, "steps": 2}
        | {"variant": made.released if method in ("mars", "released") else made.ar_variant}
        | {"seconds": slower * slow * np.exp(rng.normal(0, NOISE))}
        for seed in case.study.seeds
        for repeat, slow in enumerate(np.exp(rng.normal(0, 0.2, REPEATS)))
        for method, slower in methods.items()
    ]
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------------------- cases


def study(*variants: str, seeds: tuple[int, ...] = (0,), **evaluation: Any) -> Study:
    """The embedded study at one scale, with some of its variants."""
    raw = synthetic.reduced(("base", *variants), seeds, **evaluation).model_dump(mode="json")
    raw["scales"] = {"toy-s": raw["scales"]["toy-s"]}
    return parse_study(raw)


def level(**scores: float) -> Truth:
    """The same score on every benchmark, by variant."""
    return lambda variant, benchmark, tau: scores[variant]


def loses(benchmark: str, score: float) -> Truth:
    """Block diffusion loses that much of AR SFT's 75 on one reasoning benchmark, and much more
    on the other."""

    def truth(variant: str, on: str, tau: float) -> float:
        if variant == "ar_sft" or on not in ("toy_bbh", "toy_mmlu_pro"):
            return 75.0
        return 75.0 - score if on == benchmark else 30.0

    return truth


def steps_down(variant: str, benchmark: str, tau: float) -> float:
    """One step loses 3 points on one benchmark, the others gain."""
    if benchmark == "toy_gsm8k":
        return {1.0: 53.0, 0.95: 50.0, 0.9: 75.0}[tau]
    return {1.0: 30.0, 0.95: 60.0, 0.9: 90.0}[tau]


def equal_losses(variant: str, benchmark: str, tau: float) -> float:
    """Two benchmarks lose the same, the others gain much."""
    start = 60.0 if tau == 1.0 else 50.0
    return start if benchmark in ("toy_ifeval", "toy_bbh") else 110.0 - start - 15 * (tau == 1)


def slopes(without: float, holding: float) -> Truth:
    """Points of the mean lost from B = 4 to 8, without the SFT loss and with it."""
    return level(
        ar_sft=60,
        mars_no_sft_b4=60,
        mars_no_sft_b8=60 - without,
        mars_b4=60,
        mars_b8=60 - holding,
    )


def timed(*seeds: int) -> Study:
    """The embedded study, of which the wall-clock grid and the cost of training are drawn."""
    return parse_study({**synthetic.embedded().model_dump(mode="json"), "seeds": list(seeds)})


BOTH = study("ar_sft", "mars_b4")
SIZES = study("ar_sft", "mars_no_sft_b4", "mars_no_sft_b8", "mars_b4", "mars_b8")
BLOCKS = study("ar_sft", "block_diffusion_b4")
SWEPT = study("ar_sft", "mars_b4", sweep="panels", sweep_thresholds=[0.9])
JACOBI = study("ar_sft", jacobi={"variant": "ar_sft", "window": 4})
TIMED = timed(0)
SEEDS = {n: study("ar_sft", "mars_b4", seeds=tuple(range(n))) for n in (2, 3)}
WORSE = level(ar_sft=60, mars_b4=58)
FASTEST_AT_4 = {(AR, 4): 1.3, (NONE, 4): 0.6, (BLOCK, 4): 2.2}
"""At batch 4 one AR method is the fastest by far, at the others any: the choice is not even."""

CASES = (
    Case(1, "MARS − AR SFT is −2", BOTH, WORSE),
    Case(1, "the same, two seeds", SEEDS[2], WORSE, training_sd=2.0),
    Case(1, "the same, three seeds", SEEDS[3], WORSE, training_sd=2.0),
    Case(
        2,
        "AR SFT (10 ep) − MARS is 2",
        study("ar_sft", "ar_sft_10ep", "mars_b4"),
        level(ar_sft=50, ar_sft_10ep=60, mars_b4=58),
    ),
    Case(3, "BBH loses 5, MMLU-Pro much", BLOCKS, loses("toy_bbh", 5)),
    Case(3, "MMLU-Pro loses 5, BBH much", BLOCKS, loses("toy_mmlu_pro", 5)),
    Case(4, "without the SFT loss: slope 0", SIZES, slopes(0, -20)),
    Case(4, "with it: slope −1", SIZES, slopes(20, 1)),
    Case(5, "1.4 tokens per forward", BOTH, level(ar_sft=40, mars_b4=60), pace=1.4),
    Case(5, "MARS − AR SFT is −1.5", BOTH, level(ar_sft=60, mars_b4=58.5)),
    Case(6, "one step of four loses 3", SWEPT, steps_down),
    Case(7, "another benchmark loses as much", BOTH, equal_losses),
    Case(8, "no cache: as fast as AR at batch 4", TIMED, speeds={(NONE, 4): 1.0}),
    Case(8, "the same, three seeds", timed(0, 1, 2), speeds={(NONE, 4): 1.0}, training_sd=5.0),
    Case(
        8,
        "no cache: the same at every batch",
        TIMED,
        speeds=FASTEST_AT_4 | {(NONE, 4): 0.65, (NONE, 8): 0.5, (NONE, 16): 0.5},
    ),
    Case(
        8,
        "block cache: as fast as AR at batch 4",
        TIMED,
        speeds={(BLOCK, 4): 1.0, (BLOCK, 8): 0.6, (BLOCK, 16): 0.4},
    ),
    Case(
        8,
        "block cache: the same at every batch",
        TIMED,
        speeds=FASTEST_AT_4 | {(BLOCK, 4): 2.21, (BLOCK, 8): 1.7, (BLOCK, 16): 1.7},
    ),
    Case(9, "1.2 tokens per forward", JACOBI, jacobi=1.2),
    Case(10, "1.8 times the step", TIMED, overhead=1.8),
    Case(10, "2.4 times the step", TIMED, overhead=2.4),
)


def verdicts(case: Case, trials: int = TRIALS) -> list[str]:
    """On one claim, of many drawn studies."""
    claim, rng = claims()[case.claim - 1], np.random.default_rng(case.claim)
    found = []
    for _ in range(trials):
        grid = Timed(case, rng) if case.claim == 8 else NO_GRID
        spent = costs(case, rng) if case.claim == 10 else NO_COSTS
        found.append(judge(claim, Measured(Drawn(case, rng), grid, spent)).verdict)
    return found


def main() -> None:
    print("| claim | truth at the edge | false `reproduced` | false `not reproduced` |")
    print("| --- | --- | --- | --- |")
    for case in CASES:
        made = verdicts(case)
        false, refuted = (100 * made.count(v) / len(made) for v in (REPRODUCED, REFUTED))
        print(f"| {case.claim} | {case.edge} | {false:.1f} % | {refuted:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
