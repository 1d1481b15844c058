"""The cost study's layouts do the same work, and what is counted is there."""

import pytest
import torch
from tiny_training import EXAMPLES, KEYS, build_model, objective

from mars.streams import IGNORE
from mars.training.cost import measure, released_batch, released_loss, steps


@pytest.mark.parametrize("alignment", ["decoder", "stream"])
def test_the_released_layout_has_the_same_loss_over_twice_the_columns(model, alignment):
    made = objective("mars", alignment=alignment)
    whole = released_batch(made, EXAMPLES, KEYS)
    trimmed = made.collate(EXAMPLES, KEYS)
    assert whole.counts.masked_tokens == whole.counts.clean_tokens
    assert whole.counts.response_tokens == trimmed.counts.response_tokens
    assert int((whole.layout.mask_label != IGNORE).sum()) == whole.counts.response_tokens
    expected = made.loss(model, trimmed).total(1.0)
    assert released_loss(model, made, whole).item() == pytest.approx(expected.item(), rel=1e-10)


def test_three_steps_are_measured_in_turns():
    model = build_model(dtype=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    runs = steps(model, objective("mars"), EXAMPLES, KEYS, row_length=40)
    assert runs["released"]().item() == pytest.approx(runs["ours"]().item(), rel=1e-5)
    found = measure(model, runs, repeats=3)
    assert list(found) == ["ar_sft", "released", "ours"]
    for cost in found.values():
        assert len(cost.seconds) == len(cost.cpu_seconds) == 3
        assert min(cost.seconds) <= cost.median <= max(cost.seconds)
    weights = sum(p.nbytes for p in model.parameters()) / 2**20
    assert 3 * weights < found["ar_sft"].peak_memory_mb < found["released"].peak_memory_mb
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)  # measuring trains nothing


def test_peak_memory_counts_what_is_held_at_once():
    model = build_model(dtype=torch.float32)
    big = 2**22  # 16 MiB in float32

    def run():
        held = torch.ones(big)
        held = held * 2  # two are held here
        return sum(p.sum() for p in model.parameters()) + held[0]

    weights = sum(p.nbytes for p in model.parameters()) / 2**20
    found = measure(model, {"x": run}, repeats=1)["x"].peak_memory_mb
    assert 32 < found < 34 + 6 * weights
