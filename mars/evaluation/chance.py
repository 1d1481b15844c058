"""What each benchmark of a study gives for nothing, where that is known: ``chance.csv``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mars.config import Study
from mars.embedded.chance import chance_level
from mars.embedded.corpus import BENCHMARKS
from mars.evaluation.records import write_atomically


def write_chance(study: Study, out: Path) -> None:
    """Write ``benchmark, score`` (per cent): the best constant or random answer of each."""
    known = [name for name in study.evaluation.benchmarks if name in BENCHMARKS]
    rows = [{"benchmark": name, "score": 100 * chance_level(name)} for name in known]
    frame = pd.DataFrame(rows, columns=["benchmark", "score"])
    write_atomically(out, frame.to_csv(index=False))
