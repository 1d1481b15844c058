"""The draft's length: chosen by hand-made costs, learned from acceptance, never worse than AR."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mars.config import Decoding
from mars.decoding import DecodingError, Request, make_decoder
from mars.decoding.backbone import Backbone
from mars.decoding.costs import CostTable, measure_costs
from mars.decoding.drafts import PROBE_STEPS, DraftLength

from .tiny_models import MASK, make, outline, random_model

SIZE = 4


def costs(fixed: float, column: float, sizes=(1, 2, 8)) -> CostTable:
    """A forward costs ``fixed`` seconds and so many more for each column of each row."""
    body = {n: {w: fixed + column * n * w for w in range(1, 2 * SIZE)} for n in sizes}
    head = {n: dict.fromkeys(range(1, SIZE + 1), 0.0) for n in sizes}
    return CostTable("a machine", 1, "c0ffee", "float32", "stock", 100, body, head)


def learned(table: CostTable, rate: float, rows: int = 8, steps: int = 400) -> DraftLength:
    """After steps in which drafts of all lengths were accepted at a rate."""
    drafts, draw = DraftLength(table, SIZE), np.random.default_rng(0)
    for _ in range(steps):
        right = draw.random((rows, SIZE - 1)) < rate
        drafts.observe(np.full(rows, SIZE), 1 + right.cumprod(axis=1).sum(axis=1))
    return drafts


def test_table_is_read_between_and_beyond_its_points():
    table = costs(10.0, 1.0)
    assert table.seconds(1, 1, 1) == 11
    assert table.seconds(8, 2.5, 1) == pytest.approx(30)
    assert table.seconds(4, 3, 1) == pytest.approx(10 + 4 * 3)  # between 2 and 8 rows
    assert table.seconds(16, 3, 1) == pytest.approx(10 + 16 * 3)
    assert table.seconds(1, 9, 1) == pytest.approx(10 + 9)


def test_a_draft_is_as_long_as_pays():
    free, dear = costs(1.0, 0.0), costs(0.0, 1.0)
    assert learned(free, 0.5).choose(8) == SIZE
    assert learned(dear, 0.5).choose(8) == 1  # every column costs what a token of AR does
    assert learned(costs(1.0, 0.05), 0.0).choose(8) == 1  # cheap, and useless
    between = learned(costs(8.0, 1.0), 0.9)
    assert between.choose(1) == SIZE
    assert 1 <= learned(costs(4.0, 1.0), 0.45).choose(8) < SIZE


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("rows", [1, 8])
def test_the_rates_are_those_of_a_simulation(rate, rows):
    """Tokens a second of drafts of one length, kept for good, counted step by step."""
    table = costs(5.0, 0.7)
    found = learned(table, rate).rates(rows)
    draw = np.random.default_rng(1)
    for width in range(1, SIZE + 1):
        accepted, seconds, last = 0, 0.0, np.ones(rows, dtype=int)
        for _ in range(3000):
            seconds += table.seconds(rows, last.mean() + width - 1, width)
            right = draw.random((rows, width - 1)) < rate
            last = 1 + right.cumprod(axis=1).sum(axis=1)
            accepted += last.sum()
        assert found[width - 1] == pytest.approx(accepted / seconds, rel=0.03)


def test_acceptance_is_learned_where_it_was_offered():
    drafts = DraftLength(costs(1.0, 0.0), 3)
    assert drafts.acceptance() == pytest.approx([1, 0.5, 0.25])  # the prior
    for _ in range(2000):
        drafts.observe(np.array([2, 2, 1]), np.array([2, 1, 1]))
    # depth 1 was offered to two rows and taken by one; depth 2 never was
    assert drafts.acceptance() == pytest.approx([1, 0.5, 0.25], abs=0.01)
    for _ in range(2000):
        drafts.observe(np.array([3, 3]), np.array([3, 2]))
    assert drafts.acceptance() == pytest.approx([1, 1, 0.5], abs=0.01)


def test_a_change_of_acceptance_is_noticed():
    """Where drafts were useless and become right, a probe finds out."""
    drafts = learned(costs(1.0, 0.05), 0.0, rows=1)
    chosen = []
    for _ in range(30 * PROBE_STEPS):
        width = drafts.choose(1)
        chosen.append(width)
        drafts.observe(np.array([width]), np.array([width]))
    assert chosen.count(1) > 10
    assert chosen[-1] == SIZE


def test_probes_are_rare():
    drafts = learned(costs(0.0, 1.0), 0.3)
    chosen = [drafts.choose(8) for _ in range(10 * PROBE_STEPS)]
    assert chosen.count(1) == 9.0 * PROBE_STEPS + PROBE_STEPS - 10
    assert chosen.count(2) == 10


def test_auto_decodes_as_the_lengths_it_chose():
    """A draft cut short is accepted as the first part of a longer one would be."""
    model = random_model()
    requests = [Request(tuple(range(2, 2 + n)), 20) for n in (3, 9, 14)]
    settings = Decoding(decoder="mars", block_size=SIZE, tau=0.6, draft="auto")

    def auto(table: CostTable):
        return make_decoder(model, None, settings, mask_id=MASK, end_ids=(), costs=table)

    fixed = make(model, decoder="mars", block_size=SIZE, tau=0.6, end_ids=())
    assert outline(auto(costs(1.0, 0.0)).generate(requests)) == outline(fixed.generate(requests))
    dear = auto(costs(0.0, 1.0)).generate(requests)
    for generation in dear:  # only the prompt's forward drafts, and the probes
        assert set(generation.accepted[1:]) == {1}


def test_prompts_draft_until_drafts_are_known_not_to_pay():
    """Else nothing would be learned before the first probe, where drafts would have paid."""
    drafts = DraftLength(costs(0.0, 1.0), SIZE)
    drafts.choose(8)
    assert drafts.pays
    drafts.observe(np.full(8, SIZE), np.full(8, 1))
    drafts.choose(8)
    assert not drafts.pays
    # a probe is no change of mind
    assert [(drafts.choose(8), drafts.pays)[1] for _ in range(PROBE_STEPS)] == [False] * PROBE_STEPS
    assert learned(costs(1.0, 0.0), 0.5).pays


def test_where_no_draft_pays_rows_that_begin_together_end_together(monkeypatch):
    """As AR's do, so that one prefill fills their places; a row alone has its prompt's draft."""
    monkeypatch.setattr("mars.decoding.drafts.PROBE_STEPS", 1000)
    model, dear = random_model(), costs(0.0, 1.0)
    requests = [Request((3 + n, 5, 7), 20) for n in range(12)]
    settings = Decoding(decoder="mars", block_size=SIZE, tau=0.05, draft="auto")
    maker = {"mask_id": MASK, "end_ids": ()}
    one_token = make(model, decoder="ar", end_ids=()).generate(requests, slots=4)
    auto = make_decoder(model, None, settings, costs=dear, **maker)
    auto.generate(requests, slots=4)  # learns
    assert outline(auto.generate(requests, slots=4)) == outline(one_token)
    [alone] = make_decoder(model, None, settings, costs=dear, **maker).generate(requests[:1])
    assert alone.accepted[0] > 1


def test_auto_needs_costs_and_masks():
    with pytest.raises(DecodingError, match="measure that"):
        make(decoder="mars", block_size=4, tau=0.5, draft="auto")
    with pytest.raises(DecodingError, match="of mars only"):
        make(decoder="ar", draft="auto")


def test_costs_are_of_windows_that_differ_as_in_steps(monkeypatch):
    """A row's window is as wide as what it accepted last time; rows are packed, not padded."""
    backbone, forwarded = Backbone(random_model()), []

    def once(calls, device):
        tokens = [backbone.work.tokens]
        for call in calls.values():
            call()
            tokens.append(backbone.work.tokens)
        forwarded.append(np.diff(tokens).tolist())
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr("mars.decoding.costs._medians", once)
    measure_costs(backbone, MASK, [5], SIZE, length=20)
    body_of_one, _, body_of_five, _ = forwarded
    assert body_of_one == list(range(1, 2 * SIZE))
    assert body_of_five == [5 * columns for columns in range(1, 2 * SIZE)]


def test_costs_are_measured_and_kept(tmp_path):
    backbone = Backbone(random_model())
    table = measure_costs(backbone, MASK, [2, 1], 2, length=20, checkpoint="abc")
    assert backbone.work.forwards == 0  # measuring is not decoding
    assert list(table.body) == [1, 2]
    assert [list(line) for line in table.body.values()] == [[1, 2, 3]] * 2
    assert [list(line) for line in table.head.values()] == [[1, 2]] * 2
    for line in itertools.chain(table.body.values(), table.head.values()):
        assert all(0 < seconds < 5 for seconds in line.values())
    assert (table.length, table.dtype, table.checkpoint) == (20, "float64", "abc")
    table.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == table
    (tmp_path / "torn.json").write_text('{"machine": "x"')
    with pytest.raises(DecodingError, match=r"torn.json: not a table of costs"):
        CostTable.load(tmp_path / "torn.json")
