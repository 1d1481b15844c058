"""Blocks, layouts and visibility, held to cases small enough to read and to brute force."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from mars import streams
from mars.streams import BLOCK_DIFFUSION, IGNORE, MARS, dense_mask

MASK = 99
_ = IGNORE


def turn_of(*spans):
    """turn_of(3, 5): three prompt tokens, then a response of five; and so on."""
    out, turn = [], 0
    for i, count in enumerate(spans):
        out += [-1 if i % 2 == 0 else turn] * count
        turn += i % 2
    return torch.tensor(out)


def ids_of(turn):
    return torch.arange(10, 10 + len(turn))


# ------------------------------------------------------------------------------- blocks and phase


def test_blocks_of_a_response_start_at_its_own_phase():
    turn = turn_of(2, 6, 1, 3)
    assert streams.block_ids(turn, 4, [0, 0]).tolist() == [0, 1, 2, 2, 2, 2, 3, 3, 4, 5, 5, 5]
    assert streams.block_ids(turn, 4, [1, 3]).tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 6]


def test_two_responses_without_a_prompt_between_share_no_block():
    turn = torch.tensor([-1, 0, 0, 1, 1])
    assert streams.block_ids(turn, 4, [0, 0]).tolist() == [0, 1, 1, 2, 2]


def test_phases_are_uniform_and_depend_on_every_key():
    drawn = [streams.block_phase(0, 0, example, 0, 4) for example in range(4000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=4)
    assert len(counts) == 4
    assert counts.min() > 900
    keys = [(0, 0, 5, 0), (1, 0, 5, 0), (0, 1, 5, 0), (0, 0, 6, 0), (0, 0, 5, 1)]
    assert len({streams.block_phase(*key, 10**9) for key in keys}) == len(keys)
    assert streams.block_phase(3, 1, 2, 0, 16) == streams.block_phase(3, 1, 2, 0, 16)


def test_a_block_size_of_zero_is_an_error():
    with pytest.raises(ValueError, match="block_size is 0"):
        streams.block_ids(turn_of(1, 2), 0, [0])


# ------------------------------------------------------------------------------- layouts, by hand


def columns(layout):
    fields = ("input_ids", "position", "block", "masked", "ar_label", "mask_label")
    return {name: getattr(layout, name)[0].int().tolist() for name in fields}


def test_decoder_alignment_by_hand():
    """Prompt 10 11, response 12…16, B = 3, φ = 1: blocks (12 13) (14 15 16)."""
    turn = turn_of(2, 5)
    layout = streams.mars_layout(ids_of(turn), turn, 3, [1], MASK)
    assert columns(layout) == {
        #             clean stream                        masks for 12, 14, 15
        "input_ids": [10, 11, 12, 13, 14, 15, 16, MASK, MASK, MASK],
        "position": [0, 1, 2, 3, 4, 5, 6, 2, 4, 5],
        "block": [0, 1, 2, 2, 3, 3, 3, 2, 3, 3],
        "masked": [0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
        "ar_label": [_, 12, 13, 14, 15, 16, _, _, _, _],
        # 12 and 14 start a block: the clean column before them; the others: the mask before them
        "mask_label": [_, 12, _, 14, _, _, _, 13, 15, 16],
    }


def test_stream_alignment_by_hand():
    """Prompt 10 11 12, response 13…17, B = 2 from the sequence start: blocks straddle."""
    turn = turn_of(3, 5)
    layout = streams.stream_layout(ids_of(turn), turn, 2, MASK)
    assert columns(layout) == {
        # the masked stream starts with the block of the last prompt token (12), itself a token
        "input_ids": [10, 11, 12, 13, 14, 15, 16, 17, 12, MASK, MASK, MASK, MASK, MASK],
        "position": [0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7],
        "block": [0, 0, 1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3],
        "masked": [0] * 8 + [1] * 6,
        "ar_label": [_, _, 13, 14, 15, 16, 17, _, _, _, _, _, _, _],
        # every target is read in the masked stream, one column before it
        "mask_label": [_] * 8 + [13, 14, 15, 16, 17, _],
    }


def test_block_diffusion_by_hand():
    """Prompt 10 11, response 12…15 in blocks of 2; 12 and 15 are masked, with t = 0.5 and 0.8."""
    turn = turn_of(2, 4)
    noise = torch.tensor([0.0, 0.0, 0.4, 0.9, 0.85, 0.7])
    rate = torch.tensor([1.0, 1.0, 0.5, 0.5, 0.8, 0.8])
    layout = streams.block_diffusion_layout(ids_of(turn), turn, 2, MASK, noise, rate, "stream")
    assert columns(layout) == {
        "input_ids": [10, 11, 12, 13, 14, 15, 11, MASK, 13, 14, MASK],
        "position": [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5],
        "block": [0, 1, 2, 2, 3, 3, 1, 2, 2, 3, 3],
        "masked": [0] * 6 + [1] * 5,
        "ar_label": [_, 12, 13, 14, 15, _, _, _, _, _, _],
        "mask_label": [_] * 6 + [12, _, _, 15, _],
    }
    assert layout.mask_weight[0, 6].item() == pytest.approx(1 / 0.5)
    assert layout.mask_weight[0, 9].item() == pytest.approx(1 / 0.8)
    own = streams.block_diffusion_layout(ids_of(turn), turn, 2, MASK, noise, rate, "own")
    assert own.input_ids[0, 6:].tolist() == [MASK, 13, 14, MASK]
    assert own.mask_label[0, 6:].tolist() == [12, _, _, 15]
    assert own.mask_weight[0, [6, 9]].tolist() == pytest.approx([1 / 0.5, 1 / 0.8])


@pytest.mark.parametrize("alignment", ["decoder", "x"])
def test_block_diffusion_names_its_alignments(alignment):
    turn = turn_of(1, 2)
    rate = torch.ones(3)
    with pytest.raises(ValueError, match="'stream' and 'own'"):
        streams.block_diffusion_layout(ids_of(turn), turn, 2, MASK, rate, rate, alignment)


def test_a_response_shorter_than_its_block_and_of_one_token():
    turn = turn_of(2, 1)
    one = streams.mars_layout(ids_of(turn), turn, 8, [0], MASK)
    assert one.input_ids.shape == (1, 3)  # no mask at all: its only token is plain AR
    assert one.mask_label[0].tolist() == [_, 12, _]
    turn = turn_of(2, 3)
    short = streams.mars_layout(ids_of(turn), turn, 8, [0], MASK)
    assert short.mask_label[0].tolist() == [_, 12, _, _, _, 13, 14]


def test_each_response_token_is_a_target_once():
    turn = turn_of(3, 7, 2, 1, 1, 9)
    ids = ids_of(turn)
    for size in (2, 3, 4, 8, 16):
        for phase in range(size):
            layout = streams.mars_layout(ids, turn, size, [phase, 0, (phase + 1) % size], MASK)
            targets = layout.mask_label[layout.mask_label != IGNORE]
            assert sorted(targets.tolist()) == ids[turn >= 0].tolist()


# ------------------------------------------------------------------------------- visibility


def brute_force(layout, rule):
    """The mask by asking a rule about every pair of columns, with plain integers."""
    width = layout.shape[1]
    column = [
        (bool(layout.masked[0, c]), int(layout.position[0, c]), int(layout.block[0, c]))
        for c in range(width)
    ]
    return torch.tensor(
        [[rule(*column[q], *column[k]) for k in range(width)] for q in range(width)]
    )


def mars_rule(q_masked, i, q_block, k_masked, j, k_block):
    """The table of docs/method.md."""
    if not q_masked:
        return not k_masked and j <= i
    if not k_masked:
        return k_block < q_block
    return k_block == q_block and j <= i


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_mars_mask_is_the_table_for_every_phase(size):
    turn = turn_of(3, 7, 2, 5)
    for phase in range(size):
        phases = [phase, size - 1 - phase]
        for build in (streams.mars_layout, streams.mars_layout_full):
            layout = build(ids_of(turn), turn, size, phases, MASK)
            assert torch.equal(dense_mask(MARS, layout)[0, 0], brute_force(layout, mars_rule))


@pytest.mark.parametrize(("length", "size"), [(7, 3), (8, 4), (5, 8)])
def test_mars_mask_is_the_papers_formula(length, size):
    """Prompt-free, 2L columns: written from block indices alone."""
    turn = torch.zeros(length, dtype=torch.long)
    layout = streams.stream_layout(ids_of(turn), turn, size, MASK, trimmed=False)
    found = dense_mask(MARS, layout)[0, 0]
    for i in range(2 * length):
        for j in range(2 * length):
            if i < length:
                seen = j < length and j <= i
            elif j < length:
                seen = j // size < (i - length) // size
            else:
                seen = j <= i and (j - length) // size == (i - length) // size
            assert bool(found[i, j]) == seen, (i, j)


def block_diffusion_rule(q_masked, i, q_block, k_masked, j, k_block):
    if not q_masked:
        return not k_masked and k_block <= q_block
    return k_block == q_block if k_masked else k_block < q_block


@pytest.mark.parametrize("alignment", ["stream", "own"])
def test_block_diffusion_mask(alignment):
    turn = turn_of(3, 8, 2, 4)
    draws = torch.linspace(0, 1, len(turn))
    layout = streams.block_diffusion_layout(
        ids_of(turn), turn, 4, MASK, draws, torch.full_like(draws, 0.5), alignment
    )
    found = dense_mask(BLOCK_DIFFUSION, layout)[0, 0]
    assert torch.equal(found, brute_force(layout, block_diffusion_rule))
    # in words: the prompt is causal, a block of the response sees itself whole
    assert torch.equal(found[:3, :3], torch.ones(3, 3).tril().bool())
    assert found[3:7, :7].all()
    assert not found[3:7, 7:].any()


def test_packed_conversations_do_not_see_each_other():
    turns = [turn_of(2, 5), turn_of(1, 3, 2, 4)]
    rows = [streams.mars_layout(ids_of(t), t, 4, [1] * (int(t.max()) + 1), MASK) for t in turns]
    packed = streams.pack_row(rows)
    found = dense_mask(MARS, packed)[0, 0]
    first = rows[0].shape[1]
    assert torch.equal(found[:first, :first], dense_mask(MARS, rows[0])[0, 0])
    assert torch.equal(found[first:, first:], dense_mask(MARS, rows[1])[0, 0])
    assert not found[:first, first:].any()
    assert not found[first:, :first].any()


def test_padding_is_seen_by_no_token_and_no_row_is_empty():
    turns = [turn_of(2, 5), turn_of(1, 2)]
    rows = [streams.mars_layout(ids_of(t), t, 4, [0], MASK) for t in turns]
    batch = streams.pad_rows(rows, pad_id=0)
    found = dense_mask(MARS, batch)[:, 0]
    real = rows[1].shape[1]
    assert batch.document[1].tolist() == [0] * real + [-1] * (batch.shape[1] - real)
    assert torch.equal(found[1, :real, :real], dense_mask(MARS, rows[1])[0, 0])
    assert not found[1, :real, real:].any()
    assert found.any(-1).all()
    assert (batch.ar_label[1, real:] == IGNORE).all()
    assert (batch.mask_label[1, real:] == IGNORE).all()


@pytest.mark.parametrize("predicate", [MARS, BLOCK_DIFFUSION])
def test_flex_attention_sees_the_same(predicate):
    turns = [turn_of(2, 5), turn_of(1, 3, 2, 4)]
    batch = streams.pad_rows(
        [streams.mars_layout(ids_of(t), t, 4, [1] * (int(t.max()) + 1), MASK) for t in turns], 0
    )
    rows, width = batch.shape
    found = create_mask(streams.mask_mod(predicate, batch), rows, 2, width, width, device="cpu")
    dense = dense_mask(predicate, batch)
    assert torch.equal(found, dense.expand(rows, 2, width, width))
    assert dense.any()
    assert not dense.all()
