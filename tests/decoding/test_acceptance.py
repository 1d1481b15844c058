"""Acceptance rules as pure functions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars.decoding.acceptance import RULES, accepted_counts, predict
from mars.decoding.block_diffusion import fill_masked

from .tiny_models import PROPERTY

MASK = 4


def test_confidences_by_hand():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.9]], dtype=torch.float64).log()
    expected = {
        "probability": 0.5,
        "margin": 0.2,
        "entropy": math.exp(sum(p * math.log(p) for p in (0.5, 0.3, 0.15, 0.05))),
    }
    assert set(expected) == set(RULES)
    for rule, confidence in expected.items():
        tokens, found = predict(logits.clone(), rule, MASK)  # [MASK] has the highest logit
        assert tokens.tolist() == [0]
        assert found.item() == pytest.approx(confidence)


@PROPERTY
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=5, max_size=5),
    st.sampled_from(sorted(RULES)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    st.sampled_from([0.0, 0.7, 3.0]),
)
def test_confidence_is_in_range_and_mask_never_emitted(values, rule, dtype, temperature):
    values[MASK] = 2e4
    logits = torch.tensor([[values]], dtype=torch.float64).to(dtype)
    before = logits.clone()
    tokens, confidence = predict(
        logits.clone(), rule, MASK, temperature, torch.Generator().manual_seed(1)
    )
    assert tokens.shape == confidence.shape == (1, 1)
    assert tokens.item() != MASK
    assert 0 < confidence.item() <= 1
    assert confidence.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(logits, before)


def test_confidence_is_not_computed_in_bfloat16():
    logits = torch.tensor([[0.0, 6.5, -20.0, -20.0, -20.0]], dtype=torch.bfloat16)
    _, confidence = predict(logits.clone(), "probability", MASK)
    assert confidence.item() == pytest.approx(1 / (1 + math.exp(-6.5)), rel=1e-6)
    assert logits.softmax(-1).max().item() == 1.0


def test_sampling_is_reproducible_and_its_confidence_untempered():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05, 1e-9], dtype=torch.float64).log().expand(400, 5)

    def sample(seed):
        return predict(
            logits.clone(), "probability", MASK, 2.0, torch.Generator().manual_seed(seed)
        )

    tokens, confidence = sample(0)
    assert torch.equal(tokens, sample(0)[0])
    assert not torch.equal(tokens, sample(1)[0])
    assert set(tokens.tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(confidence, logits.exp()[0, tokens] / (1 - 1e-9))
    tempered = (logits[0, :4] / 2).softmax(-1)
    share = torch.bincount(tokens, minlength=4) / 400
    assert (share - tempered).abs().max() < 0.08


def test_margin_of_a_sampled_token_stays_positive():
    logits = torch.tensor([0.6, 0.4, 1e-12, 1e-12, 1e-12], dtype=torch.float64).log().expand(50, 5)
    tokens, confidence = predict(
        logits.clone(), "margin", MASK, 1.0, torch.Generator().manual_seed(0)
    )
    assert set(tokens.tolist()) == {0, 1}
    assert (confidence > 0).all()
    assert confidence[tokens == 0].numpy() == pytest.approx(0.2)
    assert (confidence[tokens == 1] < 1e-9).all()


@PROPERTY
@given(st.data())
def test_counts_are_what_a_loop_counts(data):
    width = data.draw(st.integers(1, 6))
    agree = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    tokens = data.draw(st.lists(st.integers(0, 5), min_size=width, max_size=width))
    available = data.draw(st.integers(0, width))
    ends = {0, 1}
    count = 0
    while count < available:
        if count > 0 and not agree[count]:
            break
        count += 1
        if tokens[count - 1] in ends:
            break
    found = accepted_counts(
        torch.tensor([agree]),
        torch.isin(torch.tensor([tokens]), torch.tensor(sorted(ends))),
        torch.tensor([available]),
    )
    assert found.tolist() == [count]


def test_filling_takes_the_confident_or_the_most_confident():
    masked = torch.tensor([[True, True, False, True]] * 3)
    confidence = torch.tensor([[0.6, 0.9, 1.0, 0.8]] * 3)
    fill = fill_masked(masked, confidence, torch.tensor([0.8, 0.95, 1.0]))
    assert fill.tolist() == [
        [False, True, False, True],
        [False, True, False, False],
        [False, True, False, False],
    ]
    certain = fill_masked(masked, torch.ones(3, 4), torch.tensor([1.0, 1.0, 0.5]))
    assert certain.sum(1).tolist() == [1, 1, 3]
