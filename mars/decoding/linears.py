"""Linear layers on a CPU: weights packed by oneDNN, where that is faster.

A stock product of a large weight with 2 to 16 rows costs several times one with a single row on
some processors, which is just where drafts lie. PyTorch can lay a weight out for oneDNN's own
kernels once (what ``torch.compile`` does when it freezes a model); these cost nearly the same
from 1 to 8 rows where reading the weight is the limit. Tiny layers lose by it, so it is measured.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mars.decoding.contract import DecodingError

ROWS = (1, 2, 4, 8)
"""Where packed is held against stock."""


class PackedLinear(nn.Module):
    """An ``nn.Linear`` for inference in float32 on a CPU, its weight laid out for oneDNN.

    A product with very few rows is done with zeros below where that is faster (measured on an
    AVX-512 processor: 1 row 272 µs, 4 rows 181 µs, for a weight of 1536 × 576).

    Attributes:
        weight: the original, which tied embeddings and ``weight.dtype`` still need.
    """

    def __init__(self, linear: nn.Linear, least: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._least = least
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, states: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        flat = states.reshape(-1, self.in_features)
        rows = len(flat)
        if rows < self._least:
            flat = nn.functional.pad(flat, (0, 0, 0, self._least - rows))
        out = torch.ops.mkldnn._linear_pointwise(flat, self._packed, self.bias, "none", [], "")
        return out[:rows].view(*states.shape[:-1], self.out_features)


def can_pack(model: Any) -> str | None:
    """None where a model's linear layers can be packed, else why not."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return (
            f"packed linears are for float32 on a CPU, the model is {model.dtype} on {model.device}"
        )
    ops = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(ops, "_reorder_linear_weight")):
        return "this PyTorch has no oneDNN"
    return None


def pack_linears(model: Any) -> None:
    """Replace every linear layer of a model by a packed one, in place; for inference only."""
    if (problem := can_pack(model)) is not None:
        raise DecodingError(f"linears: packed: {problem}: set linears: stock (or auto)")
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    least = _least_rows(max((child for _, _, child in layers), key=lambda c: c.weight.numel()))
    for parent, name, child in layers:
        setattr(parent, name, PackedLinear(child, least))


def choose_linears(model: Any, wish: Literal["stock", "packed", "auto"] = "auto") -> str:
    """Apply the wish to a model, and say what was done: ``stock`` or ``packed``.

    ``auto`` packs where the products of one of the model's layers, with 1 to 8 rows, take less
    time packed, in sum.
    """
    if wish == "stock" or (wish == "auto" and can_pack(model) is not None):
        return "stock"
    if wish == "auto":
        layers = [child for child in model.base_model.modules() if type(child) is nn.Linear]
        stock = packed = 0.0
        for layer in {tuple(c.weight.shape): c for c in layers}.values():
            other = PackedLinear(layer, _least_rows(layer))
            for rows in ROWS:
                states = torch.randn(rows, layer.in_features)
                ours, theirs = _medians(layer, other, states)
                stock, packed = stock + ours, packed + theirs
        if packed >= stock:
            return "stock"
    pack_linears(model)
    return "packed"


def _least_rows(linear: nn.Linear) -> int:
    """Below how many rows zeros are added: the fastest of 1 to 4."""
    plain = PackedLinear(linear)
    taken = {
        rows: _medians(plain, plain, torch.randn(rows, linear.in_features))[0]
        for rows in (1, 2, 3, 4)
    }
    return min(taken, key=lambda rows: taken[rows])


def _medians(one: nn.Module, other: nn.Module, states: Tensor) -> tuple[float, float]:
    """Median seconds of two layers on the same states, in turns."""
    taken: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(15):
            for layer, times in zip((one, other), taken, strict=True):
                began = time.perf_counter()
                layer(states)
                times.append(time.perf_counter() - began)
    return statistics.median(taken[0]), statistics.median(taken[1])
