"""Jobs of each rule as `mars plan` reckons them, for tests that have a dry run to hold them to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import yaml

from mars.cli.presentation import presentation
from mars.config import parse_study
from mars.planning.cost import make_plan
from mars.planning.rates import load_rates

from .conftest import ROOT


def planned(file: str, **changed: Any) -> Counter[str]:
    """Rule → jobs, of a study file of this checkout with some of its settings changed."""
    raw = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    study = parse_study(raw | {"data_root": None} | changed)
    plan = make_plan(study, load_rates("h200"), presentation(study), ROOT / "nothing is there")
    assert not any(stage.done for stage in plan.stages)
    return Counter({stage.rule: stage.jobs for stage in plan.stages if stage.jobs})


def counted(jobs: Iterable[str]) -> Counter[str]:
    """Rule → jobs, of what a dry run lists."""
    return Counter(job.split()[0] for job in jobs)
