"""Each objective's loss against an obvious reference, in float64."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from tiny_training import (
    END,
    EXAMPLES,
    KEYS,
    MASK,
    VOCAB,
    build_model,
    example,
    objective,
)
from torch.nn.functional import log_softmax

from mars import streams
from mars.streams import IGNORE, MARS, dense_mask
from mars.training.objectives import REGISTRY, check_objective
from mars.training.objectives.base import Terms
from mars.training.objectives.block_diffusion import draw_noise, whole_blocks
from mars.training.objectives.mars import whole_blocks_from_start


def nll(model, prefix, target):
    """−log p(target | prefix), by a plain causal forward of the prefix alone."""
    logits = model(input_ids=torch.tensor([list(prefix)])).logits[0, -1]
    return -log_softmax(logits, dim=-1)[int(target)]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# ------------------------------------------------------------------------------- against decoding


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_mars_trains_exactly_what_decoding_reads(kind, size):
    """Token o of a block is predicted from the finished text before the block and o masks."""
    model = build_model(kind)
    made = objective("mars", block_size=size)
    expected_ar = expected_mask = 0.0
    for sample, (epoch, number) in zip(EXAMPLES, KEYS, strict=True):
        turns = int(sample.turn.max()) + 1
        phases = [streams.block_phase(0, epoch, number, t, size) for t in range(turns)]
        ids = sample.ids.tolist()
        for t in range(turns):
            places = torch.nonzero(sample.turn == t).flatten().tolist()
            for n, place in enumerate(places):
                offset = (n + phases[t]) % size if n + phases[t] >= size else n
                start = place - offset
                expected_mask += nll(model, ids[:start] + [MASK] * offset, ids[place])
                expected_ar += nll(model, ids[:place], ids[place])
    found = made.loss(model, made.collate(EXAMPLES, KEYS))
    assert found.mask.item() == pytest.approx(expected_mask.item(), rel=1e-10)
    assert found.ar.item() == pytest.approx(expected_ar.item(), rel=1e-10)


@pytest.mark.parametrize("size", [2, 4])
def test_mars_as_released_reads_the_mask_before(size):
    """``stream``: x_{i+1} from column i of the masked stream, prefix ending at i's block."""
    model = build_model()
    made = objective("mars", block_size=size, alignment="stream")
    expected = 0.0
    for sample in EXAMPLES:
        padded = whole_blocks_from_start(sample, size, END)
        assert len(padded) % size == 0
        ids, masked = padded.ids.tolist(), padded.ids.tolist()
        for place in torch.nonzero(padded.response).flatten().tolist():
            masked[place] = MASK
        for place in torch.nonzero(padded.response).flatten().tolist():
            start = (place - 1) // size * size
            expected += nll(model, ids[:start] + masked[start:place], ids[place])
    found = made.loss(model, made.collate(EXAMPLES, KEYS))
    assert found.mask.item() == pytest.approx(expected.item(), rel=1e-10)


def test_ar_sft_is_next_token_loss_on_the_response_only(model):
    made = objective("ar_sft")
    found = made.loss(model, made.collate(EXAMPLES, KEYS))
    expected = sum(
        nll(model, sample.ids[:place].tolist(), sample.ids[place])
        for sample in EXAMPLES
        for place in torch.nonzero(sample.response).flatten().tolist()
    )
    assert found.mask is None
    assert found.ar.item() == pytest.approx(expected.item(), rel=1e-10)


# ------------------------------------------------------------------------------- trimmed ≡ full


def full_loss(model, layouts):
    """L_AR and L_mask of rows, one at a time, from logits of every column."""
    ar = mask = 0.0
    for layout in layouts:
        logits = model(
            input_ids=layout.input_ids,
            attention_mask=dense_mask(MARS, layout),
            position_ids=layout.position,
        ).logits[0]
        logp = log_softmax(logits, dim=-1)
        for column in range(layout.shape[1]):
            if (label := int(layout.ar_label[0, column])) != IGNORE:
                ar = ar - logp[column, label]
            if (label := int(layout.mask_label[0, column])) != IGNORE:
                mask = mask - logp[column, label]
    return Terms(ar, mask)


@pytest.mark.parametrize("ar_weight", [0.0, 1.0])
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("alignment", ["decoder", "stream"])
def test_trimming_the_masked_stream_changes_nothing(model, alignment, size, ar_weight):
    made = objective("mars", block_size=size, alignment=alignment, ar_weight=ar_weight)
    layouts = []
    for sample, key in zip(EXAMPLES, KEYS, strict=True):
        if alignment == "stream":
            padded = whole_blocks_from_start(sample, size, END)
            full = streams.stream_layout(padded.ids, padded.turn, size, MASK, trimmed=False)
        else:
            turns = int(sample.turn.max()) + 1
            phases = [streams.block_phase(0, *key, t, size) for t in range(turns)]
            full = streams.mars_layout_full(sample.ids, sample.turn, size, phases, MASK)
        assert full.shape[1] % 2 == 0
        layouts.append(full)
    batch = made.collate(EXAMPLES, KEYS)
    columns = batch.counts.clean_tokens + batch.counts.masked_tokens
    assert columns < sum(x.shape[1] for x in layouts)

    expected = full_loss(model, layouts)
    expected = expected.mask + ar_weight * expected.ar
    wanted = gradients(model, expected)
    found = made.loss(model, batch).total(ar_weight)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradients(model, found), wanted, rtol=1e-9, atol=1e-12)


def test_dropping_the_last_prompt_tokens_block_is_not_free(model):
    """Why ``stream`` is trimmed no further: those real tokens are keys."""
    sample = example(5, 7)  # B = 4: the last prompt token, 4, opens the block 4…7
    layout = streams.stream_layout(sample.ids, sample.turn, 4, MASK)
    assert int(layout.position[0, 12]) == 4
    keep = torch.ones(layout.shape[1], dtype=torch.bool)
    keep[12] = False
    more, less = full_loss(model, [layout]), full_loss(model, [layout.select(keep)])
    assert abs((more.mask - less.mask).item()) > 1e-3


# ------------------------------------------------------------------------------- block diffusion


class Table(torch.nn.Module):
    """A "model" whose logits are a row of a table, chosen by the column's own token."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    @property
    def base_model(self):
        return lambda input_ids, **_: type("O", (), {"last_hidden_state": self.table[input_ids]})

    def get_output_embeddings(self):
        return lambda hidden: hidden


def test_block_diffusion_loss_by_hand(monkeypatch):
    """Response 7 8 END in B = 2, so 7 8 | END END. Masked: 7 (t = 1/2), the second END (t = 1/4).

    ``stream`` reads 7 from the prompt token before it (3, probability 1/4 for 7) and the END
    from the unmasked END before it (1/8 for END); ``own`` reads both from their mask (1/2, 1/16).
    """
    table = torch.full((VOCAB, VOCAB), -60.0, dtype=torch.float64)
    for seen, target, p in [(3, 7, 4), (END, END, 8), (MASK, 7, 2), (MASK, END, 16)]:
        table[seen, target] = float(np.log(1 / p))
    for seen, rest in [(3, 3 / 4), (END, 7 / 8), (MASK, 1 - 1 / 2 - 1 / 16)]:
        table[seen, 40] = float(np.log(rest))
    model = Table(table)
    sample = example(2, 3)
    sample.ids[:] = torch.tensor([9, 3, 7, 8, END])
    noise = torch.tensor([0.0, 0.0, 0.49, 0.51, 0.26, 0.24])
    rate = torch.tensor([1.0, 1.0, 0.5, 0.5, 0.25, 0.25])
    monkeypatch.setattr(
        "mars.training.objectives.block_diffusion.draw_noise", lambda *_: (noise, rate)
    )
    for alignment, first, second in [("stream", 4, 8), ("own", 2, 16)]:
        made = objective("block_diffusion", block_size=2, alignment=alignment)
        batch = made.collate([sample], [(0, 0)])
        found = made.loss(model, batch)
        assert found.ar is None
        assert found.mask.item() == pytest.approx(2 * np.log(first) + 4 * np.log(second))
        assert batch.counts.response_tokens == 4


@pytest.mark.parametrize("alignment", ["stream", "own"])
def test_block_diffusion_against_one_block_at_a_time(model, alignment):
    """Each block: finished text block-causally, then the block itself, seen whole."""
    size, made = 4, objective("block_diffusion", block_size=4, alignment=alignment)
    expected = 0.0
    for sample, key in zip(EXAMPLES, KEYS, strict=True):
        padded = whole_blocks(sample, size, END)
        noise, rate = draw_noise(0, key, padded.turn, size)
        block = streams.block_ids(padded.turn, size, [0] * 9)
        hidden = padded.response & (noise < rate)
        for b in block[padded.response].unique().tolist():
            inside = torch.nonzero(block == b).flatten()
            start, shift = int(inside[0]), int(alignment == "stream")
            ids = torch.cat([padded.ids[:start], torch.where(hidden, MASK, padded.ids)[inside]])
            at = block[: len(ids)]
            logits = model(
                input_ids=ids[None],
                attention_mask=(at[None, :] <= at[:, None])[None, None],
                position_ids=torch.arange(len(ids))[None],
            ).logits[0]
            if shift:  # the column before the block: the same state, its block seen noised
                before = block == block[start - 1]
                noised = torch.where(hidden & before, MASK, padded.ids)[:start]
                previous = block[:start]
                logits[start - 1] = model(
                    input_ids=noised[None],
                    attention_mask=(previous[None, :] <= previous[:, None])[None, None],
                    position_ids=torch.arange(start)[None],
                ).logits[0, -1]
            for place in inside[hidden[inside]].tolist():
                logp = log_softmax(logits[place - shift], dim=-1)[padded.ids[place]]
                expected = expected - logp / rate[place]
    found = made.loss(model, made.collate(EXAMPLES, KEYS))
    assert found.mask.item() == pytest.approx(expected.item(), rel=1e-7)  # weights are float32


def test_noise_is_per_block_and_uniform():
    noise, rate = draw_noise(0, (0, 0), torch.tensor([-1] + [0] * 4000), 4)
    blocks = rate[1:].reshape(-1, 4)
    assert (blocks == blocks[:, :1]).all()
    assert 1e-3 <= rate.min() <= rate.max() <= 1
    quarters = torch.histc(blocks[:, 0], bins=4, min=0.0, max=1.0)
    assert quarters.min() > 200  # of 1000 blocks
    assert abs(float((noise < rate)[1:].float().mean()) - 0.5) < 0.03
    again, _ = draw_noise(0, (0, 0), torch.tensor([-1] + [0] * 4000), 4)
    assert torch.equal(noise, again)
    assert not torch.equal(noise, draw_noise(0, (0, 1), torch.tensor([-1] + [0] * 4000), 4)[0])


# ------------------------------------------------------------------------------- padding


def test_padding_to_whole_blocks():
    two = whole_blocks(example(2, 5, 3, 4), 4, END)
    assert two.turn.tolist() == [-1] * 2 + [0] * 8 + [-1] * 3 + [1] * 4
    assert two.ids[6:10].tolist() == [END] * 4
    cut = whole_blocks(example(2, 6, ended=False), 4, END)
    assert cut.turn.tolist() == [-1, -1, 0, 0, 0, 0]
    short = whole_blocks(example(2, 3, ended=False), 4, END)
    assert len(short) == 5  # nothing else is left of it, and it does not end
    assert END not in short.ids.tolist()
    assert len(whole_blocks_from_start(example(2, 5), 4, END)) == 8
    cut = whole_blocks_from_start(example(2, 5, ended=False), 4, END)
    assert len(cut) == 4
    assert END not in cut.ids.tolist()


def test_end_of_turn_has_loss_though_it_is_the_pad_token():
    """pad == end-of-turn here: nothing may be told apart by comparing with it."""
    made = objective("mars")
    batch = made.collate(EXAMPLES, KEYS)
    assert made.setup.pad_id == made.setup.end_id == END
    ends = sum(int((e.ids[e.response] == END).sum()) for e in EXAMPLES)
    assert int((batch.layout.ar_label == END).sum()) == ends == 6
    assert int((batch.layout.mask_label == END).sum()) == ends
    assert batch.counts.response_tokens == sum(int(e.response.sum()) for e in EXAMPLES)


# ------------------------------------------------------------------------------- signal fraction


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("response", [1, 3, 8, 20])
def test_ar_signal_fraction_is_the_formula_over_phases(monkeypatch, size, response):
    """f = (1/B)(1 + (B−1)/R) exactly, averaged over every phase; (1 + f)/2 with the SFT loss."""
    sample = example(3, response)
    exact = Fraction(1, size) * (1 + Fraction(size - 1, response))
    for weight, expected in [(0.0, exact), (1.0, (1 + exact) / 2)]:
        made = objective("mars", block_size=size, ar_weight=weight)
        total = Fraction(0)
        for phase in range(size):
            monkeypatch.setattr(streams, "block_phase", lambda *_, p=phase: p)
            counts = made.collate([sample], [(0, 0)]).counts
            total += Fraction(counts.ar_terms, counts.terms)
        assert total / size == expected


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.0), (1.0, 0.5)])
def test_as_released_no_masked_term_is_ar(weight, expected):
    made = objective("mars", alignment="stream", ar_weight=weight)
    counts = made.collate(EXAMPLES, KEYS).counts
    assert counts.ar_terms / counts.terms == expected


def test_ar_sft_is_all_ar():
    counts = objective("ar_sft").collate(EXAMPLES, KEYS).counts
    assert counts.ar_terms == counts.terms == counts.response_tokens > 0


# ------------------------------------------------------------------------------- the registry


def test_unknown_objectives_and_settings_are_named():
    with pytest.raises(ValueError, match="'mras'; did you mean 'mars'"):
        check_objective("mras")
    with pytest.raises(ValueError, match="ar_sft, mars, block_diffusion"):
        check_objective("diffusion-of-thought")
    for name in ("mars", "block_diffusion"):
        with pytest.raises(ValueError, match="block_size is 0"):
            objective(name, block_size=0)
        with pytest.raises(ValueError, match="knows"):
            objective(name, alignment="sideways")
    assert list(REGISTRY) == ["ar_sft", "mars", "block_diffusion"]


def test_logits_are_computed_only_where_there_is_loss(model, monkeypatch):
    seen = []
    head = model.get_output_embeddings()
    monkeypatch.setattr(
        model, "get_output_embeddings", lambda: lambda h: seen.append(h.shape) or head(h)
    )
    made = objective("mars", block_size=4)
    batch = made.collate(EXAMPLES, KEYS)
    made.loss(model, batch)
    layout = batch.layout
    wanted = int(((layout.ar_label != IGNORE) | (layout.mask_label != IGNORE)).sum())
    assert [tuple(s) for s in seen] == [(wanted, 16)]
