"""Decoding meets the states that training showed: the same logits, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from mars.decoding import Engine, Request
from mars.decoding.backbone import Spans
from mars.decoding.rows import ROW, Batch
from mars.streams import (
    BLOCK_DIFFUSION,
    MARS,
    block_diffusion_layout,
    dense_mask,
    mars_layout,
)

from .tiny_models import ARCHITECTURES, MASK, make, random_model

PROMPT, SIZE = 7, 4
CLOSE = {"rtol": 0, "atol": 1e-6}  # the models' norms and rotations are in float32


def conversation(response: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(2, MASK, (PROMPT + response,), generator=draw)
    turn = torch.full((len(ids),), -1)
    turn[PROMPT:] = 0
    return ids, turn


def training_logits(model, layout, predicate):
    return model(
        input_ids=layout.input_ids,
        position_ids=layout.position,
        attention_mask=dense_mask(predicate, layout),
        use_cache=False,
    ).logits[0]


def alone(decoder, ids, length: int):
    """A batch of one row whose first ``length`` ids are accepted, the first PROMPT its prompt."""
    batch = Batch(decoder.backbone, 1, len(ids) + 3 * SIZE, MASK, decoder.policy().stores)
    state = np.zeros(1, dtype=ROW)
    state["prompt"], state["length"], state["end"] = PROMPT, length, len(ids) + SIZE
    batch.admit([Request(tuple(ids[:length].tolist()), 20)], state)
    return batch


def span(start: int, stop: int) -> Spans:
    return Spans(np.array([start]), np.array([stop]))


def drafted(decoder, ids, start: int, cached: int, count: int):
    """The decoder's logits for ``count`` tokens from ``start`` on, ``cached`` columns cached."""
    seen = []
    predict = type(decoder).predict
    decoder.predict = lambda logits: seen.append(logits.clone()) or predict(decoder, logits)
    batch = alone(decoder, ids, start)
    if cached:
        decoder._forward(batch, 0, span(0, cached), np.array([0]))
    decoder._forward(batch, 0, span(cached, start + count - 1), np.array([count]))
    return seen[-1][0]


@torch.inference_mode()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("phase", range(SIZE))
def test_masked_stream_is_what_mars_decoding_sees(architecture, phase):
    model = random_model(architecture)
    ids, turn = conversation(response=11)
    layout = mars_layout(ids, turn, SIZE, [phase], MASK)
    logits = training_logits(model, layout, MARS)
    decoder = make(model, decoder="mars", block_size=SIZE, tau=0.9)
    reference = make(model, decoder="mars", block_size=SIZE, tau=0.9, cache="none")
    predicting = layout.mask_label[0] >= 0
    # where a token is predicted from: its label is the token after the column's position
    place = {int(p) + 1: int(c) for c, p in enumerate(layout.position[0]) if predicting[c]}
    assert sorted(place) == list(range(PROMPT, len(ids)))
    first = PROMPT
    while first < len(ids):
        size = min(SIZE - phase if first == PROMPT else SIZE, len(ids) - first)
        expected = logits[[place[first + o] for o in range(size)]]
        for cached in (0, 1, first - 3, first - 1):
            torch.testing.assert_close(
                drafted(decoder, ids, first, cached, size), expected, **CLOSE
            )
        torch.testing.assert_close(drafted(reference, ids, first, 0, size), expected, **CLOSE)
        first += size


@torch.inference_mode()
@pytest.mark.parametrize("alignment", ["stream", "own"])
@pytest.mark.parametrize("cache", ["cursor", "none"])
def test_masked_stream_is_what_block_diffusion_sees(alignment, cache):
    model = random_model()
    ids, turn = conversation(response=3 * SIZE)
    decoder = make(
        model, decoder="block_diffusion", block_size=SIZE, alignment=alignment, cache=cache
    )
    for block in range(3):
        start = PROMPT + block * SIZE
        for hidden in ([0, 1, 2, 3], [1, 3], [0, 2]):
            noise = torch.ones(len(ids))
            noise[[start + o for o in hidden]] = 0.0
            layout = block_diffusion_layout(
                ids, turn, SIZE, MASK, noise, torch.full((len(ids),), 0.5), alignment
            )
            logits = training_logits(model, layout, BLOCK_DIFFUSION)
            shift = 1 if alignment == "stream" else 0
            column = {
                int(p): c
                for c, (p, masked) in enumerate(
                    zip(layout.position[0], layout.masked[0], strict=True)
                )
                if masked
            }
            expected = logits[[column[start + o - shift] for o in range(SIZE)]]
            found = _block_logits(decoder, ids, block, hidden)
            torch.testing.assert_close(found, expected, **CLOSE)


def _block_logits(decoder, ids, block, hidden):
    """The decoder's logits of a block when the blocks before it are finished."""
    batch = alone(decoder, ids, PROMPT)
    row = batch.state[0]
    for at in range(block + 1):
        row["length"] = PROMPT + at * SIZE
        batch.tokens[0, : row["length"]] = ids[: row["length"]]
        if at == block:
            for o in range(SIZE):
                if o not in hidden:
                    batch.tokens[0, row["length"] + o] = ids[row["length"] + o]
        place = (torch.tensor([int(row[name])]) for name in ("cached", "length", "prompt"))
        logits = decoder._logits(batch, 0, *place)
        if batch.cache is not None:
            row["cached"] = row["length"]
    return logits[0]


@torch.inference_mode()
@pytest.mark.parametrize("method", ["mars", "jacobi", "block"])
def test_cache_holds_a_fresh_prefill_of_the_accepted_tokens(method):
    model = random_model()
    decoder = {
        "mars": lambda: make(model, decoder="mars", block_size=4, tau=0.6, end_ids=()),
        "block": lambda: make(
            model, decoder="mars", block_size=4, tau=0.6, cache="block", cache_block=5, end_ids=()
        ),
        "jacobi": lambda: make(model, decoder="jacobi", block_size=4, end_ids=()),
    }[method]()
    draw = torch.Generator().manual_seed(1)
    requests = [
        Request(tuple(torch.randint(2, MASK, (n,), generator=draw).tolist()), budget)
        for n, budget in ((3, 20), (11, 9), (6, 30), (1, 14), (8, 12))
    ]
    engine = Engine(decoder, 3, 40, prefill=5)  # the two longer prompts come in parts
    for request in requests:
        engine.submit(request)
    batch, steps, slot_of, moved, seen = engine._batch, 0, {}, 0, set()
    while engine.active or engine.waiting:
        engine.step()
        steps += 1
        for slot, row in enumerate(batch.rows):
            index, cached = int(row["index"]), int(row["cached"])
            moved += slot_of.get(index, slot) != slot
            slot_of[index] = slot
            accepted = [*requests[index].prompt_ids, *engine.so_far(index)]
            assert len(accepted) == row["length"]
            assert cached < row["length"]
            if not cached:
                continue
            seen.add((index, cached < row["prompt"]))
            fresh = DynamicCache()
            model(torch.tensor([accepted[:cached]]), cache=fresh, use_cache=True)
            for layer, reference in zip(batch.cache.layers, fresh.layers, strict=True):
                for name in ("keys", "values"):
                    want = getattr(reference, name)[0]
                    found = getattr(layer, name)[slot, :, :cached]
                    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    assert steps > 10
    assert moved > 0  # rows left, and others took their slots
    assert (1, True) in seen  # half a prompt was in the cache
    assert {index for index, part in seen if not part} == set(range(len(requests)))
