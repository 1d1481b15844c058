"""What a decoder's work asks of the machine, counted: FLOPs, and bytes of memory.

Beside the machine's ceilings (``mars.measurement``) they show what is left to gain: a decoder that
reaches one cannot be made faster by a better cache, only by less work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mars.decoding.contract import Work


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
