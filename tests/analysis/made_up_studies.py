"""The studies that made-up results are made of, and their made-up confidences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mars.config import Study, load_study, parse_study

ROOT = Path(__file__).parents[2]


def embedded() -> Study:
    return load_study(ROOT / "config" / "embedded.yaml")


def reduced(variants: tuple[str, ...], seeds: tuple[int, ...] = (0,), **evaluation: Any) -> Study:
    """A part of the embedded study: some variants at both scales, nothing timed."""
    raw = embedded().model_dump(mode="json")
    raw |= {"study": "reduced", "seeds": list(seeds), "throughput": None, "training_cost": None}
    raw["variants"] = {name: raw["variants"][name] for name in variants}
    for variant in raw["variants"].values():
        variant["scales"] = None
    raw["evaluation"] |= {"sweep": "none", "acceptance": None, "jacobi": None, **evaluation}
    return parse_study(raw)


def confidences(noise: np.random.Generator, tokens: int) -> list[float]:
    """One a token; the least of them falls anywhere between 0.6 and 1, however many there are."""
    return [round(float(c), 4) for c in 1 - 0.4 * noise.random(tokens) ** (1.3 * tokens)]


SENTENCE = "the answer is 18 . so they have 7 and 4 to find how many apples are"
WORDS = SENTENCE.split()


def text(words: int, document: int, right: bool) -> str:
    """A made-up answer of so many words; each is one token of the toy checkpoints."""
    stride = 3 if right else 5
    return "".join(f" {WORDS[(document + k * stride) % len(WORDS)]}" for k in range(words))
