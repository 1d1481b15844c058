"""What is compared does the same work on the same conversations; what is counted is there."""

import csv
import json
from pathlib import Path
from statistics import median

import pytest
import torch
from tiny_training import END, EXAMPLES, KEYS, build_model, build_study, objective

from mars import measurement, models
from mars.config import ConfigError, Drawn, TrainingCost, load_study, parse_study
from mars.measurement import MeasurementError
from mars.streams import IGNORE
from mars.training import attention, cost_study
from mars.training.cost import Bench, Method, packed_batch, released_batch, released_loss, work
from mars.training.cost_study import COLUMNS, in_turn, make_methods, measure_training_cost

ROOT = Path(__file__).parents[2]


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


def test_ar_as_released_has_the_same_loss_over_padded_rows(model):
    made = objective("ar_sft", block_size=1)
    padded = released_batch(made, EXAMPLES, KEYS)
    assert padded.layout.shape == (len(EXAMPLES), max(map(len, EXAMPLES)))
    packed = packed_batch(made, EXAMPLES, KEYS, 40)
    expected = made.loss(model, packed).total(1.0)
    assert released_loss(model, made, padded).item() == pytest.approx(expected.item(), rel=1e-10)
    rows, width = padded.layout.shape
    found = work(model, Method("ar_released", "ar_sft", made, (padded,)), padded)
    assert (found.columns, found.read) == (rows * width, rows * width)
    assert found.pairs == rows * width**2  # SDPA on a CPU computes what causality hides, too


def methods():
    sft, mars = objective("ar_sft", block_size=1), objective("mars")
    return [
        Method("ar_sft", "ar_sft", sft, (packed_batch(sft, EXAMPLES, KEYS, 40),)),
        Method("mars", "mars", mars, (packed_batch(mars, EXAMPLES, KEYS, 40),)),
        Method("released", "mars", mars, (released_batch(mars, EXAMPLES, KEYS),)),
    ]


def test_measuring_trains_nothing_and_memory_is_each_methods_own():
    model = build_model(dtype=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    bench = Bench(model)
    ar, mars, released = methods()
    with mars.attending(model):
        ours = mars.loss(model, mars.batches[0]).item()
    assert released.loss(model, released.batches[0]).item() == pytest.approx(ours, rel=1e-5)
    assert all(bench.run(method).seconds > 0 for method in (ar, mars, released))
    weights = sum(p.nbytes for p in model.parameters()) / 2**20
    first = bench.peak_memory_mb(ar)
    assert 3 * weights < first < bench.peak_memory_mb(released)
    assert bench.peak_memory_mb(ar) == pytest.approx(first, rel=0.02)  # whatever ran before
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_peak_memory_counts_what_is_held_at_once():
    model = build_model(dtype=torch.float32)
    big = 2**22  # 16 MiB in float32

    class Holds(Method):
        def loss(self, model, batch):
            held = torch.ones(big)
            held = held * 2  # two are held here
            return sum(p.sum() for p in model.parameters()) + held[0]

    ar = methods()[0]
    weights = sum(p.nbytes for p in model.parameters()) / 2**20
    found = Bench(model).peak_memory_mb(Holds(ar.name, ar.variant, ar.objective, ar.batches))
    assert 32 < found < 34 + 6 * weights


def test_what_is_computed_is_counted(model):
    ar, mars, released = methods()
    for method in (ar, mars):
        batch = method.batches[0]
        found = work(model, method, batch)
        assert found.columns == batch.layout.input_ids.numel()
        assert batch.counts.response_tokens <= found.read < found.columns
        assert batch.counts.attended <= found.pairs
    batch = released.batches[0]
    rows, width = len(EXAMPLES), 2 * max(map(len, EXAMPLES))
    found = work(model, released, batch)
    assert (found.columns, found.read, found.pairs) == (rows * width, rows * width, rows * width**2)
    # two layers of 16: q 16, k and v 8, o 16 wide, three matrices of an MLP of 24; 50 in the head
    body = 2 * 16 * (16 + 8 + 8 + 16 + 3 * 24)
    by_hand = 6 * rows * width * (body + 50 * 16) + 12 * 4 * 4 * 2 * rows * width**2
    assert found.flops(model) == by_hand


def test_what_trains_with_a_dense_mask_is_measured_with_one(model, monkeypatch):
    """As on old GPUs."""
    monkeypatch.setattr(attention, "kind", lambda _: "dense")
    before = model.config._attn_implementation
    for method in methods()[:2]:
        with method.attending(model):
            assert model.config._attn_implementation == before
        rows, width = method.batches[0].layout.shape
        assert work(model, method, method.batches[0]).pairs == rows * width**2


# --------------------------------------------------------------------------- the study


@pytest.fixture
def study(rows, monkeypatch):
    monkeypatch.setattr(measurement, "CEILING_SECONDS", 0.0)
    asked = {"scale": "s", "variants": ["mars"], "released": "mars", "conversations": 6}
    return build_study(rows).model_copy(
        update={"training_cost": TrainingCost(**asked, steps=2, repeats=3)}
    )


def test_every_method_has_the_same_conversations(study, base):
    model, tokenizer = models.load_model(base), models.load_tokenizer(base)
    made = make_methods(study, study.training_cost, model, tokenizer, 0, base)
    assert [method.name for method in made] == ["ar_sft", "mars", "ar_released", "released"]

    def conversations(method):
        """The ids of each step's conversations, masks left out."""
        steps = []
        for batch in method.batches:
            at, found = batch.layout, []
            for n in range(len(at.input_ids)):
                for document in range(int(at.document[n].max()) + 1):
                    mine = (at.document[n] == document) & ~at.masked[n]
                    found.append(at.input_ids[n][mine].tolist())
            steps.append(sorted(found))
        return steps

    first = conversations(made[0])
    assert [len(step) for step in first] == [6, 6]
    assert first[0] != first[1]
    for method in made[1:]:
        assert conversations(method) == first
        for batch, other in zip(method.batches, made[0].batches, strict=True):
            assert sorted(batch.keys) == sorted(other.keys)
            assert batch.counts.response_tokens == other.counts.response_tokens
    whole = made[3].batches[0].counts
    assert whole.masked_tokens == whole.clean_tokens  # 2L


def test_drawn_conversations_need_no_data_and_no_context(study, base):
    """… and have the length and the response that were asked for, in rows of their own."""
    asked = study.training_cost.model_copy(
        update={"drawn": Drawn(tokens=100, response_share=0.6), "conversations": 3}
    )
    nowhere = study.model_copy(
        update={"data": study.data.model_copy(update={"source": "nowhere.jsonl"})}
    )
    model, tokenizer = models.load_model(base), models.load_tokenizer(base)
    assert model.config.max_position_embeddings < 100
    made = make_methods(nowhere, asked, model, tokenizer, 0, base)
    again = make_methods(nowhere, asked, model, tokenizer, 0, base)
    for method, other in zip(made, again, strict=True):
        for batch, same in zip(method.batches, other.batches, strict=True):
            assert (batch.counts.clean_tokens, batch.counts.response_tokens) == (300, 180)
            assert len(batch.layout.input_ids) == 3
            assert torch.equal(batch.layout.input_ids, same.layout.input_ids)
    first, second = (batch.layout.input_ids for batch in made[0].batches)
    assert not torch.equal(first, second)
    assert (first[:, -1] == END).all()


@pytest.mark.parametrize("name", ["training_cost", "qwen05b_training_cost"])
def test_the_studies_of_cost_have_the_targets_rows(name):
    """Rows of 512 clean tokens, 60 % in the response: 1.45 columns a token at B = 4, 1.56 at 16."""
    study = load_study(ROOT / "config" / f"{name}.yaml")
    tokenizer, model = models.load_tokenizer("embedded:toy-m"), build_model()
    asked = study.training_cost.model_copy(update={"conversations": 2, "steps": 1})
    made = make_methods(study, asked, model, tokenizer, 0, ROOT)
    columns = {m.label: work(model, m, m.batches[0]).columns for m in made if m.name != "released"}
    assert columns["ar_sft"] == 2 * 512
    assert columns["mars_b4"] / columns["ar_sft"] == pytest.approx(1.45, abs=0.005)
    assert columns["mars_b16"] / columns["ar_sft"] == pytest.approx(1.56, abs=0.005)


def test_methods_take_turns_and_each_repeat_begins_with_another():
    ar, mars, released = methods()
    assert [m.name for m in in_turn([ar, mars, released], 1)] == ["mars", "released", "ar_sft"]
    assert in_turn([ar, mars, released], 3)[0] is ar


def measured(study, base, out, capsys):
    measure_training_cost(study, 0, base, out)
    with out.open(newline="") as file:
        return list(csv.DictReader(file)), capsys.readouterr()


def test_a_study_is_measured(study, base, tmp_path, capsys):
    out = tmp_path / "seed0" / "training_cost.csv"
    found, said = measured(study, base, out, capsys)
    assert list(found[0]) == list(COLUMNS)
    assert [(r["method"], r["block_size"], r["repeat"]) for r in found[:4]] == [
        *(("ar_sft", "1", "0"), ("mars", "4", "0")),
        *(("ar_released", "1", "0"), ("released", "4", "0")),
    ]
    assert len(found) == 12
    assert len({row["tokens"] for row in found}) == 1
    for row in found:
        rate = float(row["tokens"]) / float(row["seconds"])
        assert float(row["tokens_per_s"]) == pytest.approx(rate, rel=1e-2)
        assert int(row["columns"]) >= int(row["tokens"])
    assert len({row["peak_memory_mb"] for row in found if row["method"] == "mars"}) == 1
    (peak,) = {float(row["peak_gflops_per_s"]) for row in found}
    shares = [float(r["gflops_per_s"]) / peak for r in found if r["method"] == "mars"]
    assert 0 < max(shares) < 1
    told = json.loads(said.out.splitlines()[-1])
    assert list(told["methods"]) == [
        *("ar_sft ar_sft", "mars mars", "ar_released ar_sft", "released mars"),
    ]
    assert told["methods"]["ar_sft ar_sft"]["step_vs_ar_sft"] == 1.0
    assert told["methods"]["mars mars"]["mfu"] == pytest.approx(median(shares), abs=1e-4)
    assert told["methods"]["ar_released ar_sft"]["step_vs_ar_released"] == 1.0
    assert "12/12" in said.err
    where = json.loads(out.with_suffix(".environment.json").read_text())
    assert where["interruptions"] == 0
    assert where["training_cost"]["conversations"] == 6
    assert {p.name for p in out.parent.iterdir()} == {
        "training_cost.csv",
        "training_cost.environment.json",
    }


def test_an_interrupted_measurement_repeats_nothing(study, base, tmp_path, capsys, monkeypatch):
    out = tmp_path / "training_cost.csv"
    real, runs = Bench.run, []

    def dies(self, method):
        runs.append(method.label)
        if len(runs) > 4 + 4:  # four warm-ups, four runs
            raise KeyboardInterrupt
        return real(self, method)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "run", dies)
        with pytest.raises(KeyboardInterrupt):
            measure_training_cost(study, 0, base, out)
    assert not out.exists()
    hidden = tmp_path / ".training_cost.csv.partial"
    lines = [json.loads(line) for line in hidden.read_text().splitlines()]
    kept = {at["key"]: at["value"]["seconds"] for at in lines[1:] if "seconds" in str(at["value"])}
    hidden.write_text(hidden.read_text() + '{"key": "mars 2", "value": {"sec')  # cut by the kill

    again = []
    monkeypatch.setattr(Bench, "run", lambda self, m: (again.append(m.label), real(self, m))[1])
    monkeypatch.setattr(Bench, "peak_memory_mb", None)  # known already
    found, _ = measured(study, base, out, capsys)
    assert len(again) == 4 + 12 - 4
    seconds = {}
    for row in found:
        label = row["variant"] + (" as released" if row["method"].endswith("released") else "")
        seconds[f"{label} {row['repeat']}"] = float(row["seconds"])
    assert len(kept) == 4
    assert {key: seconds[key] for key in kept} == pytest.approx(kept, abs=1e-5)
    where = json.loads(out.with_suffix(".environment.json").read_text())
    assert where["interruptions"] == 1
    assert not hidden.exists()


def test_a_step_that_does_not_fit_names_its_setting(study, base, tmp_path, monkeypatch):
    def full(self, method):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(Bench, "run", full)
    asked = study.training_cost.conversations
    told = rf"at {asked} \(training_cost.conversations\): try {asked // 2}"
    with pytest.raises(MeasurementError, match=told):
        measure_training_cost(study, 0, base, tmp_path / "cost.csv")


def test_a_study_without_the_section_says_so(study, base, tmp_path):
    with pytest.raises(cost_study.CostError, match="no training_cost section; add one"):
        measure_training_cost(
            study.model_copy(update={"training_cost": None}), 0, base, tmp_path / "x.csv"
        )


def test_the_section_is_checked(study):
    raw = study.model_dump(mode="json")
    raw["training_cost"]["released"] = "diffusion"
    with pytest.raises(ConfigError, match="released: 'diffusion' is not trained by mars"):
        parse_study(raw)
