"""Packing and steps: every conversation once, nothing too wide, the same for everybody."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import EXAMPLES, objective

from mars.config import Training
from mars.training.packing import micro_batches, pack, share
from mars.training.steps import Ahead, Order, Steps, shuffled

WIDTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def draw(seed=0):
    return np.random.default_rng(seed)


@settings(deadline=None)
@given(WIDTHS, st.integers(8, 80), st.integers(1, 9))
def test_every_conversation_is_in_one_row_and_rows_are_no_longer_than_asked(widths, length, least):
    rows = pack(widths, length, draw(), at_least=least)
    assert sorted(i for row in rows for i in row) == list(range(len(widths)))
    full = [sum(widths[i] for i in row) for row in rows]
    assert full == sorted(full, reverse=True)
    longest = max(length, *widths)
    assert all(width <= longest for width in full)
    assert len(rows) >= min(least, len(widths))
    assert rows == pack(widths, length, draw(), at_least=least)


def test_best_fit_by_hand():
    """6 4 | 5 3 2: two full rows of ten, where first come first served would take three."""
    assert [sorted(row) for row in pack([5, 6, 3, 4, 2], 10, draw())] in (
        [[1, 3], [0, 2, 4]],
        [[0, 2, 4], [1, 3]],
    )


def test_conversations_of_equal_width_are_drawn():
    assert pack([7] * 12, 14, draw(0)) != pack([7] * 12, 14, draw(1))


@settings(deadline=None)
@given(WIDTHS, st.integers(8, 200), st.integers(1, 5))
def test_forwards_hold_no_more_tokens_than_asked_and_divide_among_processes(widths, tokens, n):
    widths = sorted(widths, reverse=True)
    groups = micro_batches(widths, tokens, n)
    assert sorted(row for group in groups for row in group) == list(range(len(widths)))
    for group in groups:
        assert len(group) == 1 or len(group) * widths[group[0]] <= tokens
    shares = [share(groups, process, n) for process in range(n)]
    assert len({len(mine) for mine in shares}) == 1  # every process as often
    assert sorted(r for mine in shares for g in mine if g for r in g) == list(range(len(widths)))
    if len(widths) >= n * len(groups):
        assert all(None not in mine for mine in shares)


def test_a_step_is_its_examples_however_it_is_packed_and_shared():
    items = EXAMPLES * 4
    order = shuffled(items, epochs=2, seed=0)
    for config in (
        Training(batch_size=8, row_length=30, micro_batch_tokens=60),
        Training(batch_size=8, row_length=500, micro_batch_tokens=8),
    ):
        for processes in (1, 2, 3):
            parts = [
                Steps(order, objective("mars"), config, p, processes) for p in range(processes)
            ]
            assert len(parts[0]) == 5
            for number in range(5):
                steps = [part[number] for part in parts]
                expected = {order.fetch(i)[1] for i in range(number * 8, number * 8 + 8)}
                assert set(steps[0].keys) == expected
                assert len({step.counts for step in steps}) == 1
                assert len({len(step.batches) for step in steps}) == 1
                real = [b for step in steps for b in step.batches if b.weight]
                assert sorted(key for b in real for key in b.keys) == sorted(expected)
                assert sum((b.counts for b in real[1:]), real[0].counts) == steps[0].counts


def test_every_variant_sees_the_same_examples_in_the_same_order():
    items = [torch.zeros(3 + i * 7 % 11) for i in range(20)]
    order = shuffled(items, epochs=2, seed=0)
    keys = [order.fetch(i)[1] for i in range(order.total)]
    assert keys == [shuffled(items, 2, 0).fetch(i)[1] for i in range(40)]
    assert keys[:20] != sorted(keys[:20])
    assert {k for k in keys if k[0] == 0} == {(0, i) for i in range(20)}
    assert [k[1] for k in keys[:20]] != [k[1] for k in keys[20:]]
    assert keys != [shuffled(items, 2, 1).fetch(i)[1] for i in range(40)]


def test_more_processes_than_conversations():
    order = Order(lambda i: (EXAMPLES[i], (0, i)), 2)
    config = Training(batch_size=2)
    steps = [Steps(order, objective("ar_sft"), config, p, 4)[0] for p in range(4)]
    assert sorted(b.weight for step in steps for b in step.batches) == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["ar_sft", "mars"])
def test_the_embedded_corpus_fills_its_rows(name):
    """At least 95 % of the positions of a step's forwards are tokens or masks."""
    from mars.config import load_study
    from mars.data import encode_all
    from mars.embedded import corpus
    from mars.embedded.tokenizer import build_tokenizer

    study = load_study("config/embedded.yaml")
    rows = corpus.conversations("sft", 640, 0, start=0)
    found = encode_all(build_tokenizer(), [row["messages"] for row in rows], study.data.max_length)
    steps = Steps(shuffled(found, 1, 0), objective(name, block_size=4), study.training)
    used = positions = 0
    for number in range(len(steps)):
        for batch in steps[number].batches:
            used += int((batch.layout.document >= 0).sum())
            positions += batch.layout.document.numel()
    assert used / positions >= 0.95


def test_the_next_step_is_laid_out_meanwhile():
    made = []

    class Told(Steps):
        def __getitem__(self, step):
            made.append(step)
            if step == 3:
                raise ValueError("step 3")
            return super().__getitem__(step)

    config = Training(batch_size=4, row_length=60, micro_batch_tokens=60)
    plain = Steps(shuffled(EXAMPLES * 4, 1, 0), objective("mars"), config)
    ahead = Ahead(Told(plain.order, plain.objective, config))
    assert len(ahead) == len(plain) == 5
    first = ahead[1]  # as of a run that goes on
    until = time.monotonic() + 20
    while made != [1, 2]:  # which nobody asked for
        assert time.monotonic() < until
        time.sleep(0.001)
    for number, found in ((1, first), (2, ahead[2]), (4, ahead[4])):
        wanted = plain[number]
        assert (found.keys, found.counts) == (wanted.keys, wanted.counts)
        for a, b in zip(found.batches, wanted.batches, strict=True):
            assert torch.equal(a.layout.input_ids, b.layout.input_ids)
    with pytest.raises(ValueError, match="step 3"):  # where it belongs
        ahead[3]
    ahead.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("layout")]


def test_conversations_are_counted_once(monkeypatch):
    made, counted = objective("mars"), []
    original = type(made).count
    monkeypatch.setattr(
        type(made), "count", lambda self, rows: counted.extend(rows) or original(self, rows)
    )
    step = Steps(shuffled(EXAMPLES * 4, 1, 0), made, Training(batch_size=20))[0]
    assert len(counted) == step.counts.examples == 20
