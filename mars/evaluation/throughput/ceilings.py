"""What the machine could do at best, measured; and what a decoder's work asks of it, counted.

Both are of the model's dtype and of the grid's threads. A decoder that reaches a ceiling cannot be
made faster by a better cache, only by less work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mars.decoding.contract import Work

SECONDS = 1.0
"""Each ceiling is the best of as many repeats as fit into this time."""


@dataclass(frozen=True)
class Ceilings:
    """The best this machine was seen to do.

    Attributes:
        flops: floating-point operations a second, of a large matrix product.
        bytes: bytes a second, read from memory.
    """

    flops: float
    bytes: float


def measure_ceilings(dtype: torch.dtype, device: str) -> Ceilings:
    """Measure both, in about ``2 · SECONDS``."""
    with torch.inference_mode():
        return Ceilings(_matmul_rate(dtype, device), _read_rate(device))


def _matmul_rate(dtype: torch.dtype, device: str) -> float:
    size = 8192 if device == "cuda" else 1024
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    made = torch.empty_like(left)
    return 2 * size**3 / _best(lambda: torch.mm(left, right, out=made), device)


def _read_rate(device: str) -> float:
    """Of a matrix–vector product, which is what decoding one row does with the weights."""
    columns = 4096
    rows = _buffer_bytes(device) // (4 * columns)
    matrix = torch.ones(rows, columns, device=device)
    vector = torch.ones(columns, device=device)
    made = torch.empty(rows, device=device)
    seconds = _best(lambda: torch.mv(matrix, vector, out=made), device)
    return matrix.nbytes / seconds


def _buffer_bytes(device: str) -> int:
    """Well beyond the last-level cache, so that little of it survives from repeat to repeat."""
    if device == "cuda":
        return 2**31
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    last = max((int(size[:-1]) * 2**10 for size in sizes if size.endswith("K")), default=0)
    return min(max(4 * last, 2**28), 2**29)  # what fits beside the models, on a small machine


def _best(run: Callable[[], Tensor], device: str) -> float:
    """Seconds of the fastest of several runs, at least two, after one that is not timed."""
    run()
    best, spent, done = float("inf"), 0.0, 0
    while spent < SECONDS or done < 2:
        start = clock(device)
        run()
        seconds = clock(device) - start
        best, spent, done = min(best, seconds), spent + seconds, done + 1
    return best


def clock(device: str) -> float:
    """Seconds now, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# --------------------------------------------------------------------------- counted


@dataclass(frozen=True)
class Sizes:
    """What of a model's configuration the counts need.

    Attributes:
        body: weights of the matrix products of one token, all layers together.
        head: weights of the LM head, V · H.
        query: width of all query heads together; key: of all key (or value) heads.
        layers: how many there are.
    """

    body: int
    head: int
    query: int
    key: int
    layers: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """Of a Llama/Qwen-style model: projections q, k, v, o and a gated MLP of three matrices."""
        hidden, layers = config.hidden_size, config.num_hidden_layers
        size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        query, key = config.num_attention_heads * size, config.num_key_value_heads * size
        layer = 2 * hidden * query + 2 * hidden * key + 3 * hidden * config.intermediate_size
        return cls(layer * layers, config.vocab_size * hidden, query, key, layers)


def flops(work: Work, config: Any) -> float:
    """Floating-point operations of some work; a multiplication and an addition are two.

    - 2 · weights of the body, for each token that went through it
    - 2 · V · H, for each position that went through the LM head
    - 4 · heads · head size, for each query–key pair and layer: 2 for the score, 2 for the value

    Norms, rotary positions, softmax and activations are left out: under 2 % of a model that is
    not tiny. Pairs that the mask hides are counted, for they are computed.
    """
    sizes = Sizes.of(config)
    attention = 4 * sizes.query * sizes.layers * work.keys
    return 2.0 * sizes.body * work.tokens + 2.0 * sizes.head * work.heads + attention


def bytes_moved(work: Work, config: Any, dtype: torch.dtype) -> float:
    """Bytes that some work must read and write in memory, however well it is done.

    - the weights of body and LM head, once for each forward
    - keys and values that were read: 2 · key width · layers, for each column read
    - keys and values that were written: the same, for each token forwarded

    Activations are left out (they stay in the processor's caches), and so are copies of the cache,
    which no algorithm needs: one that makes them is seen to move few useful bytes a second.
    """
    sizes = Sizes.of(config)
    weights = (sizes.body + sizes.head) * work.forwards
    column = 2 * sizes.key * sizes.layers
    return float(dtype.itemsize * (weights + column * (work.cached + work.tokens)))
