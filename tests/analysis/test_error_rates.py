"""No verdict is wrong more often than it may be, not even at the edge of its bounds."""

from __future__ import annotations

import pytest
from scipy import stats

from mars.analysis.claims import claims
from mars.analysis.claims.verdict import REFUTED, REPRODUCED, UNMEASURED

from .error_rates import BOTH, CASES, TRIALS, Case, level, verdicts

ALLOWED = int(stats.binom.ppf(0.999, TRIALS, 0.05))
"""False verdicts: a true rate of 5 % gives more with a probability of 0.001."""


def test_every_claim_is_simulated():
    assert {case.claim for case in CASES} == {claim.id for claim in claims()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.claim}, {case.edge}")
def test_a_truth_at_the_edge_is_seldom_called_reproduced(case):
    made = verdicts(case)
    assert len(made) == TRIALS
    assert UNMEASURED not in made
    assert made.count(REPRODUCED) <= ALLOWED
    assert made.count(REFUTED) <= ALLOWED


def test_a_truth_far_within_every_bound_is_called_reproduced():
    """The same simulation can say it: the claims are not just never reproduced."""
    within = {case.claim: case for case in CASES if case.claim in (8, 9, 10)}
    better = Case(5, "", BOTH, level(ar_sft=50, mars_b4=75))
    worse = Case(1, "", BOTH, level(ar_sft=75, mars_b4=40))
    assert set(verdicts(better, 20)) == {REPRODUCED}
    assert set(verdicts(worse, 20)) == {REFUTED}
    for claim in (8, 9, 10):
        made = verdicts(Case(claim, "", within[claim].study, jacobi=1.05), 20)
        assert made.count(REPRODUCED) > 10
        assert REFUTED not in made
