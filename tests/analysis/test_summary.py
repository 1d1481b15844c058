"""How sub-tasks are weighted, as far as scores and records tell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mars.analysis.summary import Summary
from mars.config import Study

from . import synthetic

SIZES = {"boolean": 250, "snarks": 178, "penguins": 146}
"""Sub-tasks of BBH, which lm-eval weighs by their documents."""
AT = ("toy-s", "toy_bbh")


@pytest.fixture(scope="module")
def study() -> Study:
    return synthetic.reduced(("base", "ar_sft", "mars_b4"))


def summary_of(study: Study, shares: dict[str, dict[str, float]]) -> Summary:
    """Its scores on BBH where each variant gets those shares of the sub-tasks right, weighed by
    size and written as ``evaluation.csv`` has them."""
    rows, records = [], []
    for variant, of_task in shares.items():
        right = {t: np.arange(n) < round(of_task[t] * n) for t, n in SIZES.items()}
        for d in study.decodings(variant, "toy_bbh"):
            name = f"{variant}/{d.id}.jsonl"
            score = 100 * np.concatenate(list(right.values())).mean()
            rows.append(
                {"seed": 0, "scale": AT[0], "variant": variant, "benchmark": AT[1]}
                | {"decoder": d.decoder, "block_size": d.block_size, "tau": d.tau, "rule": d.rule}
                | {"score": round(float(score), 4), "records": name, "tokens_per_forward": 1.0}
                | {"documents": sum(SIZES.values()), "truncated": 0.0}
            )
            records += [
                {"records": name, "task": t, "doc_id": i, "score": float(x)}
                | {"tokens": 1, "forwards": 1}
                for t, answers in right.items()
                for i, x in enumerate(answers)
            ]
    frame = pd.DataFrame(records)
    for column in ("records", "task"):
        frame[column] = pd.Categorical(frame[column], list(dict.fromkeys(frame[column])))
    return Summary(study, pd.DataFrame(rows), frame)


def test_models_are_weighted_alike_where_one_score_fits_both_weightings_by_chance(study):
    """Equal weights give ar_sft within 0.02 points of its score; of base's, all wrong, any do."""
    summary = summary_of(
        study,
        {
            "base": dict.fromkeys(SIZES, 0.0),
            "ar_sft": {"boolean": 0.5, "snarks": 107 / 178, "penguins": 69 / 146},
            "mars_b4": {"boolean": 0.8, "snarks": 0.5, "penguins": 0.3},
        },
    )
    sides = {v: (v, summary.decoding(v, AT[1])) for v in ("base", "ar_sft", "mars_b4")}
    assert {v: summary.cells(AT[0], v, AT[1], d)[0].weighting for v, d in sides.values()} == (
        dict.fromkeys(sides, "size")
    )
    for other in ("base", "ar_sft"):
        change = summary.difference(*AT, sides["mars_b4"], sides[other])
        assert change is not None
        assert change.interval is not None
    assert summary.score(AT[0], "mars_b4", AT[1], sides["mars_b4"][1]).value == pytest.approx(
        100 * (200 + 89 + 44) / 574, abs=1e-3
    )
