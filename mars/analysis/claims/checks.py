"""One small function for each kind of check that claims are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mars.analysis.claims.evidence import Evidence, Model, Source, Term
from mars.analysis.claims.verdict import Bound
from mars.analysis.statistics import Estimate

TIMED: Source = ("throughput",)
COSTED: Source = ("training_cost",)


@dataclass(frozen=True)
class Condition:
    """One number of a claim, and what it must be.

    Attributes:
        key: which condition it is, the same for a study and the paper: the paper's scale and more.
        what: the number in words.
        bound: None where it is shown only, and judged by nothing.
        sources: what it is made of.
        decimals: with which it is shown.
    """

    key: tuple[Any, ...]
    what: str
    number: Estimate | None
    bound: Bound | None
    sources: tuple[Source, ...] = ()
    decimals: int = 1


Settings = Mapping[str, Any]
Check = Callable[[Evidence, Settings], Iterator[Condition]]


def difference(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """One model's score minus another's, on the mean or on one column."""
    model, minus = Model(**settings["model"]), Model(**settings["minus"])
    column = settings.get("column")
    on = None if column is None else [column]
    for scale in evidence.scales:
        if evidence.has(scale, model, on) and evidence.has(scale, minus, on):
            yield Condition(
                (evidence.paper_scale(scale), column),
                f"{scale}: {model} − {minus}, {column or 'mean'}",
                evidence.score(scale, [Term(1, model, column), Term(-1, minus, column)]),
                _bound(settings),
                evidence.sources(scale, [model, minus]),
            )


def slope(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """Points of the mean score for each doubling of B, where the other model has several too."""
    name = settings["model"]["name"]
    for scale in evidence.scales:
        sizes = evidence.block_sizes(scale, name)
        if min(len(sizes), len(evidence.block_sizes(scale, settings["beside"]["name"]))) < 2:
            continue
        models = [Model(name, size) for size in sizes]
        terms = [Term(w, m) for w, m in zip(_slope(np.log2(sizes)), models, strict=True)]
        yield Condition(
            (evidence.paper_scale(scale),),
            f"{scale}: {name}, B = {', '.join(map(str, sizes))}, mean per doubling of B",
            evidence.score(scale, terms),
            _bound(settings),
            evidence.sources(scale, models),
        )


def pace(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """Tokens per forward, the mean over benchmarks."""
    model = Model(**settings["model"])
    for scale in evidence.scales:
        if evidence.has(scale, model):
            yield Condition(
                (evidence.paper_scale(scale),),
                f"{scale}: {model}, tokens per forward, mean",
                evidence.pace(scale, model),
                _bound(settings),
                evidence.sources(scale, [model]),
                decimals=2,
            )


def steps(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """What each step to the next lower τ changes, for every B on each benchmark of the frontier."""
    for scale, model in _every_size(evidence, settings):
        for column in evidence.panels:
            taus = evidence.thresholds(scale, model, column)
            for above, below in pairwise(t for t in taus if t >= settings["down_to"]):
                change = [
                    Term(1, model._replace(tau=below), column),
                    Term(-1, model._replace(tau=above), column),
                ]
                yield Condition(
                    (evidence.paper_scale(scale), model.block_size, column, above, below),
                    f"{scale}: {model}, {column}, τ = {above:g} to {below:g}",
                    evidence.score(scale, change),
                    _bound(settings),
                    evidence.sources(scale, [model]),
                )


def loses_most(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """How much more one benchmark changes from τ = 1 than each other one does, for every B."""
    most = settings["column"]
    for scale, model in _every_size(evidence, settings):
        if most not in evidence.columns or not evidence.has(scale, model):
            continue
        one = model._replace(tau=1.0)
        for column in evidence.columns:
            if column == most:
                continue
            change = [
                *(Term(1, model, most), Term(-1, one, most)),
                *(Term(-1, model, column), Term(1, one, column)),
            ]
            yield Condition(
                (evidence.paper_scale(scale), model.block_size, column),
                f"{scale}: {model}, change from τ = 1, {most} − {column}",
                evidence.score(scale, change),
                _bound(settings),
                evidence.sources(scale, [model]),
            )


def speedup(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """MARS with a cache over cached AR, at each batch size."""
    cache, block = settings["cache"], settings.get("cache_block")
    for batch in settings["batch_sizes"]:
        if batch in evidence.batch_sizes(cache, block):
            yield Condition(
                (cache, batch),
                f"{evidence.timed}: MARS, {_cache(cache, block)}, speedup at batch {batch}",
                evidence.speedup(cache, block, batch),
                _bound(settings),
                (TIMED,),
                decimals=2,
            )


def speedup_trend(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """The factor by which that speedup changes with each doubling of the batch."""
    cache, block = settings["cache"], settings.get("cache_block")
    known = evidence.batch_sizes(cache, block)
    batches = [batch for batch in settings["batch_sizes"] if batch in known]
    if len(batches) > 1:
        yield Condition(
            (cache, "trend"),
            f"{evidence.timed}: MARS, {_cache(cache, block)}, speedup × per doubling of the batch "
            f"({', '.join(map(str, batches))})",
            evidence.trend(cache, block, batches),
            _bound(settings),
            (TIMED,),
            decimals=2,
        )


def jacobi(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """Tokens per forward of Jacobi decoding on AR SFT."""
    for scale in evidence.jacobi_scales:
        yield Condition(
            (evidence.paper_scale(scale),),
            f"{scale}: Jacobi on AR SFT, tokens per forward, mean",
            evidence.jacobi(scale),
            _bound(settings),
            evidence.sources(scale, [Model("AR SFT")]),
            decimals=2,
        )


def training_time(evidence: Evidence, settings: Settings) -> Iterator[Condition]:
    """Step time in a layout ÷ AR SFT's."""
    found = evidence.training_time(settings["layout"])
    if found is not None:
        what, number = found
        key = (settings["layout"],)
        yield Condition(key, what, number, _bound(settings), (COSTED,), decimals=2)


CHECKS: dict[str, Check] = {
    "difference": difference,
    "slope": slope,
    "pace": pace,
    "steps": steps,
    "loses_most": loses_most,
    "speedup": speedup,
    "speedup_trend": speedup_trend,
    "jacobi": jacobi,
    "training_time": training_time,
}


def _bound(settings: Settings) -> Bound | None:
    return Bound.parse(settings["bound"]) if "bound" in settings else None


def _every_size(evidence: Evidence, settings: Settings) -> Iterator[tuple[str, Model]]:
    """Each scale with the model of a check, at every B that it has there."""
    for scale in evidence.scales:
        for size in evidence.block_sizes(scale, settings["model"]["name"]):
            yield scale, Model(**settings["model"], block_size=size)


def _slope(x: np.ndarray) -> list[float]:
    """The weights of values in the slope of their least-squares line over x."""
    centred = x - x.mean()
    return [float(w) for w in centred / (centred**2).sum()]


def _cache(cache: str, block: int | None) -> str:
    return "no cache" if cache == "none" else f"{cache} cache {block}"
