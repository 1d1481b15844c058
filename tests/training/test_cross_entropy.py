"""The chunked loss of a linear head against the plain one."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mars.training import cross_entropy as module
from mars.training.cross_entropy import weighted_sums


def inputs(positions=13, bias=False):
    torch.manual_seed(0)
    head = nn.Linear(6, 17, bias=bias).double()
    hidden = torch.randn(positions, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(17, (positions,))
    weights = torch.stack([torch.rand(positions), torch.randint(2, (positions,)).float()])
    return head, hidden, target, weights.double()


def gradients(head, hidden, loss):
    return torch.autograd.grad(loss, [hidden, *head.parameters()])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("limit", [17, 17 * 4, 17 * 13, 10**6])
def test_chunks_change_nothing(limit, bias):
    head, hidden, target, weights = inputs(bias=bias)
    expected = weights @ cross_entropy(head(hidden), target, reduction="none")
    found = weighted_sums(hidden, head, target, weights, limit)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    mix = torch.tensor([0.3, 1.7], dtype=torch.float64)
    for got, wanted in zip(
        gradients(head, hidden, found @ mix), gradients(head, hidden, expected @ mix), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_memory_does_not_grow_with_the_positions(monkeypatch):
    """No tensor of logits is larger than asked, forward and backward."""
    head, hidden, target, weights = inputs(positions=100)
    seen = []
    original = module._wide
    monkeypatch.setattr(module, "_wide", lambda x: seen.append(x.numel()) or original(x))
    weighted_sums(hidden, head, target, weights, limit=17 * 10).sum().backward()
    assert len(seen) == 20
    assert max(seen) <= 170


def test_few_logits_are_made_in_one_go_by_the_head_itself(monkeypatch):
    head, hidden, target, weights = inputs()
    monkeypatch.setattr(module, "_Chunked", None)
    weighted_sums(hidden, head, target, weights)


def test_no_position_has_a_loss():
    head, hidden, target, weights = inputs(positions=0)
    found = weighted_sums(hidden, head, target, weights)
    assert found.tolist() == [0, 0]
    found.sum().backward()


def test_autocast_keeps_the_weights_gradient_in_float32():
    torch.manual_seed(0)
    head = nn.Linear(8, 40, bias=False)
    hidden = torch.randn(9, 8, requires_grad=True)
    target, weights = torch.randint(40, (9,)), torch.ones(1, 9)
    found = []
    for limit in (80, 10**6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = weighted_sums(hidden, head, target, weights, limit).sum()
        found.append([loss, *gradients(head, hidden, loss)])
    for chunked, plain in zip(*found, strict=True):
        assert chunked.dtype == plain.dtype == torch.float32
        torch.testing.assert_close(chunked, plain, rtol=0.02, atol=0.02)


def test_chunks_of_low_precision_add_up_in_float32():
    """As FSDP trains: weights in bfloat16, whose sum over many chunks would lose its last bits."""
    torch.manual_seed(0)
    head = nn.Linear(16, 200, bias=True).bfloat16()
    hidden = torch.randn(2000, 16).bfloat16().requires_grad_()
    target, weights = torch.randint(200, (2000,)), torch.ones(1, 2000)
    wide = nn.Linear(16, 200, bias=True).double()
    wide.load_state_dict(head.state_dict())
    inside = hidden.detach().double().requires_grad_()
    loss = weighted_sums(inside, wide, target, weights.double(), 10**9).sum()
    expected = gradients(wide, inside, loss)
    errors = []
    for limit in (200 * 8, 10**9):
        loss = weighted_sums(hidden, head, target, weights, limit).sum()
        found = gradients(head, hidden, loss)
        assert {x.dtype for x in found} == {torch.bfloat16}
        pairs = zip(found, expected, strict=True)
        errors.append([float((x.double() - wanted).norm()) for x, wanted in pairs])
    for chunked, whole in zip(*errors, strict=True):
        assert chunked < 1.5 * whole


def test_on_a_gpu_more_is_made_at_once():
    """Enough rows of Qwen's vocabulary to fill it, and no more bytes than a few layers hold."""
    cpu, cuda = (module.LOGITS[kind] for kind in ("cpu", "cuda"))
    assert cpu // 151_936 < 128 < 600 < cuda // 151_936
    assert 4 * cuda <= 2**29  # in float32


def test_fused_sums_are_taken_by_kind_of_position(monkeypatch):
    """Each position goes through the fused kernel once, whichever sums it belongs to."""
    head, hidden, target, _ = inputs(bias=True)
    calls = []

    def fused(x, weight, target, bias, reduction, accum_dtype):
        calls.append(len(x))
        assert accum_dtype == torch.float64  # at least float32
        return cross_entropy(x @ weight.T + bias, target, reduction=reduction)

    fake = types.ModuleType("liger_kernel.transformers.functional")
    fake.liger_fused_linear_cross_entropy = fused
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", fake)
    both = torch.tensor([[1] * 9 + [0] * 4, [0] * 5 + [1] * 8], dtype=torch.float64)
    found = module._fused_sums(hidden, head, target, both)
    expected = both @ cross_entropy(head(hidden), target, reduction="none")
    torch.testing.assert_close(found, expected.float())
    assert sorted(calls) == [4, 4, 5]
    mix = torch.tensor([0.25, 1.75])  # exact in float32, as the fused sums are
    for got, wanted in zip(
        gradients(head, hidden, found @ mix),
        gradients(head, hidden, expected @ mix.double()),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
