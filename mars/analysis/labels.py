"""How variants are named in tables and figures, and where each stands in the paper."""

from __future__ import annotations

from typing import Any

from mars.analysis import paper
from mars.config import Study, Variant

AR_SFT = "AR SFT"
CONTROL = "AR SFT (10 ep)"
NO_SFT = "MARS w/o SFT loss"
PAPER_ORDER = ("Base (no fine-tune)", AR_SFT, CONTROL, "Block Diffusion", NO_SFT, "MARS")


def paper_model(variant: Variant) -> str | None:
    """The paper's label of the model that a variant reproduces, or None."""
    if variant.objective is None:
        return None if variant.checkpoint else "Base (no fine-tune)"
    if variant.objective == "ar_sft":
        return CONTROL if len(variant.stages) > 1 else AR_SFT
    if variant.objective == "block_diffusion":
        return "Block Diffusion" if variant.alignment == "stream" else None
    if variant.objective == "mars" and variant.ar_weight in (0.0, 1.0):
        return "MARS" if variant.ar_weight else NO_SFT
    return None


def label(name: str, variant: Variant) -> str:
    """What a variant is called; anything unlike the paper's models says how."""
    called = _called(name, variant)
    return f"{called}, {rate}" if (rate := _rate(variant)) else called


def apart(variant: Variant) -> str:
    """What a MARS variant has that the others of its B do not; empty where it is the paper's."""
    found = ["alignment as released" if variant.alignment == "stream" else "", _rate(variant)]
    return ", ".join(filter(None, found))


def line(study: Study, name: str) -> str:
    """A MARS variant where only its kind need be told: ``B = 4``, and what sets it apart."""
    variant = study.variants[name]
    own = apart(variant) or (name if rank(study, name) else "")
    return f"B = {variant.block_size}" + (f", {own}" if own else "")


def rank(study: Study, name: str) -> int:
    """How many variants alike in objective, B, SFT loss and alignment stand before this one."""

    def kind(other: str) -> tuple[Any, ...]:
        made = study.variants[other]
        return made.objective, made.block_size, made.ar_weight, made.alignment

    alike = [other for other in study.variants if kind(other) == kind(name)]
    return sorted(alike, key=lambda n: order(n, study.variants[n])).index(name)


def _rate(variant: Variant) -> str:
    rate = variant.learning_rate
    return "" if rate is None else f"learning rate {rate:g}"


def _called(name: str, variant: Variant) -> str:
    known = paper_model(variant)
    if known == CONTROL:
        return "AR SFT, budget of both stages (compute-matched)"
    if variant.objective == "mars":
        if variant.alignment == "stream":
            return f"{known or name} (alignment as released)"
        return known or f"MARS, ar_weight {variant.ar_weight:g}"
    if variant.objective == "block_diffusion" and known is None:
        return f"Block Diffusion ({variant.alignment} alignment)"
    return known or name


def order(name: str, variant: Variant) -> tuple[int, bool, int]:
    """Sort key: the paper's row order; what is not quite the paper's after its group; then B."""
    known = paper_model(variant)
    if known is None:
        known = {"mars": "MARS", "block_diffusion": "Block Diffusion"}.get(str(variant.objective))
    place = PAPER_ORDER.index(known) if known in PAPER_ORDER else len(PAPER_ORDER)
    released = variant.objective == "mars" and variant.alignment == "stream"
    other = released or paper_model(variant) is None or bool(_rate(variant))
    return place, other, variant.block_size


def ordered(study: Study, scale: str) -> list[str]:
    """Variants made at a scale, in the paper's row order."""
    names = [name for name in study.variants if scale in study.scales_of(name)]
    return sorted(names, key=lambda n: order(n, study.variants[n]))


def reference(study: Study, scale: str) -> str | None:
    """The AR SFT row of a scale, that differences are taken from."""
    for name in ordered(study, scale):
        if paper_model(study.variants[name]) == AR_SFT:
            return name
    return None


def drafted(variant: Variant) -> int | None:
    """The block size B of a variant; None for autoregressive ones."""
    return variant.block_size if variant.objective in ("mars", "block_diffusion") else None


def covers(study: Study) -> str:
    """What the intervals of scores and of tokens per forward cover, after "95 % intervals"."""
    if len(study.seeds) > 1:
        return "over documents and training again"
    return "over documents only, not over training again"


def columns(study: Study) -> dict[str, str]:
    """Benchmark → column title, in the paper's order and then the study's."""
    titles = {name: b.column for name, b in study.evaluation.benchmarks.items()}
    if len(set(titles.values())) < len(titles):
        titles = {name: name for name in titles}
    place = {c: i for i, c in enumerate(paper.COLUMNS)}
    in_order = sorted(titles, key=lambda n: place.get(titles[n], len(place)))
    return {name: titles[name] for name in in_order}


def paper_row(study: Study, found: dict[str, float] | None) -> dict[str, float] | None:
    """A row of the paper restricted to the study's columns.

    Avg is the paper's own where the study has its six benchmarks, else the mean of those shared.
    """
    if found is None:
        return None
    titles = list(columns(study).values())
    row = {c: found[c] for c in titles if c in found}
    if set(titles) == set(paper.COLUMNS):
        row["Avg"] = found["Avg"]
    elif len(row) == len(titles):
        row["Avg"] = sum(row.values()) / len(row)
    return row


def comparable(study: Study, scale: str) -> bool:
    """Whether a scale *is* the paper's model, so that absolute scores compare too."""
    at = study.scales[scale]
    return at.paper is not None and f"Qwen2.5-{at.paper}" in at.base
