"""What stands for which of the paper's models, in the studies that come with the project."""

from __future__ import annotations

import pytest

from mars.analysis import labels
from mars.config import load_study

from .made_up_studies import ROOT


@pytest.mark.parametrize("name", ["embedded", "smollm2", "paper"])
def test_the_control_is_ar_sft_trained_for_longer(name):
    """Over both stages' examples, or as in the paper over the same ones twice."""
    study = load_study(ROOT / "config" / f"{name}.yaml")
    made = {v: labels.paper_model(study.variants[v]) for v in ("ar_sft", "ar_sft_10ep")}
    assert made == {"ar_sft": labels.AR_SFT, "ar_sft_10ep": labels.CONTROL}
    for scale in study.scales:
        assert labels.reference(study, scale) == "ar_sft"
        named = {labels.label(v, study.variants[v]) for v in ("ar_sft", "ar_sft_10ep")}
        assert named == {"AR SFT", "AR SFT, budget of both stages (compute-matched)"}
