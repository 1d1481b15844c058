"""The paper's claims, judged by a study's own measurements (``paper/claims.yaml``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mars.analysis import labels, paper
from mars.analysis.claims.checks import CHECKS, Condition
from mars.analysis.claims.evidence import Evidence
from mars.analysis.claims.measured import TAU, Measured
from mars.analysis.claims.printed import Printed
from mars.analysis.claims.verdict import UNMEASURED, Verdict, of_claim, of_number
from mars.analysis.missing import Missing, missing
from mars.analysis.results import load_training_cost, of_every_seed
from mars.analysis.speed import load_grid
from mars.analysis.statistics import Estimate
from mars.analysis.summary import summarise
from mars.config import Study


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: where it stands, what a study needs for it, its conditions."""

    id: int
    sentence: str
    where: str
    needs: str
    conditions: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Judged:
    """A condition with its verdict (None: shown only), and the paper's number."""

    condition: Condition
    verdict: Verdict | None
    paper: Estimate | None


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict and what it rests on; ``gaps``: what is missing for it."""

    claim: Claim
    verdict: Verdict
    parts: Sequence[Judged]
    gaps: Sequence[Missing] = ()

    @property
    def decisive(self) -> Judged | None:
        """The condition that the verdict rests on: the first that shares it."""
        return next((part for part in self.parts if part.verdict == self.verdict), None)


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in order."""
    raw = yaml.safe_load((paper.FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    return tuple(Claim(**{**one, "conditions": tuple(one["conditions"])}) for one in raw)


def conditions(claim: Claim, evidence: Evidence) -> list[tuple[tuple[Any, ...], Condition]]:
    """The conditions of a claim on some evidence, and what tells them apart."""
    return [
        ((i, *made.key), made)
        for i, settings in enumerate(claim.conditions)
        for made in CHECKS[settings["check"]](evidence, settings)
    ]


def judge(claim: Claim, evidence: Evidence, beside: Evidence | None = None) -> Finding:
    """The verdict on a claim, with the numbers of other evidence (the paper's) beside.

    What a claim asks for and the evidence has no part of is not measured: half of a claim may
    refute it, but does not make it true.
    """
    made = conditions(claim, evidence)
    theirs = dict(conditions(claim, beside)) if beside else {}
    among = max(1, sum(condition.bound is not None for _, condition in made))
    parts = [
        Judged(
            condition,
            of_number(condition.number, condition.bound, among) if condition.bound else None,
            theirs[key].number if key in theirs else None,
        )
        for key, condition in made
    ]
    verdicts = [part.verdict for part in parts if part.verdict]
    asked = {i for i, settings in enumerate(claim.conditions) if "bound" in settings}
    if asked - {key[0] for key, _ in made}:
        verdicts.append(UNMEASURED)
    return Finding(claim, of_claim(verdicts), parts)


def findings(study: Study, results: Path) -> list[Finding]:
    """Every claim, judged by what a study measured; the paper's numbers beside."""
    costs = of_every_seed(study, load_training_cost(study, results), ["variant", "method"])
    evidence = Measured(summarise(study, results), load_grid(study, results, TAU), costs)
    theirs = Printed([c for c in labels.columns(study).values() if c in paper.COLUMNS])
    gaps = missing(study, results)
    return [_with_gaps(judge(claim, evidence, theirs), gaps) for claim in claims()]


def _with_gaps(finding: Finding, gaps: Sequence[Missing]) -> Finding:
    wanted = {
        source
        for part in finding.parts
        if part.verdict == UNMEASURED
        for source in part.condition.sources
    }
    mine = [gap for gap in gaps if gap.source in wanted]
    return Finding(finding.claim, finding.verdict, finding.parts, mine)
