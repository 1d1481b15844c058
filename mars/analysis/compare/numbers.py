"""Paired differences between a variant and its baselines, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mars.analysis import labels
from mars.analysis import statistics as st
from mars.analysis.statistics import Estimate
from mars.analysis.summary import Side, Summary, summarise
from mars.config import Study
from mars.config.sections import UNTHRESHOLDED


@dataclass(frozen=True)
class Paired:
    """One score, ours and theirs, on the same documents.

    Attributes:
        ours, theirs: scores in per cent; None where a result is missing.
        difference: ours − theirs, paired by document.
        p: of no difference, McNemar's exact test where scores are 0 or 1, else the paired
            bootstrap's; corrected (Holm) over all that is compared. None of a mean.
        pace, pace_theirs: tokens per forward; faster: their difference, paired by document.
    """

    ours: Estimate | None
    theirs: Estimate | None
    difference: Estimate | None
    p: float | None
    pace: Estimate | None
    pace_theirs: Estimate | None
    faster: Estimate | None


@dataclass(frozen=True)
class Against:
    """The variant at a threshold against a baseline at one, on every benchmark.

    ``mean`` is the plain mean of the benchmarks; its values are None where one is missing.
    """

    scale: str
    baseline: str
    tau: float
    tau_theirs: float
    benchmarks: dict[str, Paired]
    mean: Paired
    verdict: str


BETTER, NOT_WORSE, WORSE, INCONCLUSIVE, MISSING = (
    "better", "not worse", "worse", "inconclusive", "missing",
)  # fmt: skip


def verdict(difference: Estimate | None, margin: float) -> str:
    """What a difference amounts to, by its 95 % interval.

    Better: all of it above 0. Not worse: all of it above −margin. Worse: all of it below 0 (and
    some of it beyond the margin). Else inconclusive.
    """
    if difference is None or difference.interval is None:
        return MISSING
    low, high = difference.interval
    if low > 0:
        return BETTER
    if low > -margin:
        return NOT_WORSE
    return WORSE if high < 0 else INCONCLUSIVE


def compare(
    study: Study, results: Path, variant: str, baselines: Sequence[str], margin: float
) -> list[Against]:
    """The variant against each baseline, at every scale and threshold that both were read at.

    Args:
        study: a study that has the variant and the baselines.
        results: ``results/<study>``.
        margin: points of the mean score.
    """
    summary = summarise(study, results)
    found = [
        _against(summary, scale, variant, baseline, taus, margin)
        for scale in study.scales_of(variant)
        for baseline in baselines
        if scale in study.scales_of(baseline)
        for taus in pairs(summary, variant, baseline)
    ]
    return _corrected(found)


def pairs(summary: Summary, variant: str, baseline: str) -> list[tuple[float, float]]:
    """(τ of the variant, τ of the baseline) that are compared, from 1 down.

    The same τ where both have thresholds; where one has none, its only setting against each.
    """
    ours, theirs = common_thresholds(summary, variant), common_thresholds(summary, baseline)
    alone = [summary.study.variants[name].decoder in UNTHRESHOLDED for name in (variant, baseline)]
    if any(alone):
        return [(a, b) for a in ours for b in theirs]
    return [(tau, tau) for tau in ours if tau in theirs]


def common_thresholds(summary: Summary, variant: str) -> list[float]:
    """The thresholds that a variant is read at on every benchmark, from 1 down."""
    names = list(summary.study.evaluation.benchmarks)
    found = [set(summary.thresholds(variant, name)) for name in names]
    return sorted(set.intersection(*found), reverse=True)


def _against(
    summary: Summary,
    scale: str,
    variant: str,
    baseline: str,
    taus: tuple[float, float],
    margin: float,
) -> Against:
    found = {}
    for name in labels.columns(summary.study):
        ours = variant, summary.decoding(variant, name, taus[0])
        theirs = baseline, summary.decoding(baseline, name, taus[1])
        found[name] = _paired(summary, scale, name, ours, theirs)
    parts = list(found.values())
    mean = Paired(
        ours=st.average(p.ours for p in parts),
        theirs=st.average(p.theirs for p in parts),
        difference=st.average(p.difference for p in parts),
        p=None,
        pace=st.average(p.pace for p in parts),
        pace_theirs=st.average(p.pace_theirs for p in parts),
        faster=st.average(p.faster for p in parts),
    )
    said = verdict(mean.difference, margin)
    return Against(scale, baseline, *taus, found, mean, said)


def _paired(summary: Summary, scale: str, benchmark: str, ours: Side, theirs: Side) -> Paired:
    pace = summary.tokens_per_forward(scale, ours[0], benchmark, ours[1])
    pace_theirs = summary.tokens_per_forward(scale, theirs[0], benchmark, theirs[1])
    told = summary.p_value(scale, benchmark, ours, theirs)
    return Paired(
        ours=summary.score(scale, ours[0], benchmark, ours[1]),
        theirs=summary.score(scale, theirs[0], benchmark, theirs[1]),
        difference=summary.difference(scale, benchmark, ours, theirs),
        p=told and told[0],
        pace=pace,
        pace_theirs=pace_theirs,
        # a benchmark's documents are drawn once for all models, so the draws are paired
        faster=st.combine([(1.0, pace), (-1.0, pace_theirs)]),
    )


def _corrected(found: Sequence[Against]) -> list[Against]:
    """The same, the p-values of all benchmarks corrected for being many (Holm)."""
    places = [(i, name) for i, one in enumerate(found) for name in one.benchmarks]
    values = st.holm([found[i].benchmarks[name].p for i, name in places])
    for (i, name), p in zip(places, values, strict=True):
        found[i].benchmarks[name] = replace(found[i].benchmarks[name], p=p)
    return list(found)
