"""The plan of a study: its jobs are the dry run's, its hours are work divided by rates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from mars import cli
from mars.config import parse_study
from mars.planning.cost import make_plan
from mars.planning.rates import PlanError, load_rates
from mars.planning.sizes import parameters

ROOT = Path(__file__).resolve().parents[2]
CPU = load_rates("cpu-core")
QUICK = yaml.safe_load((ROOT / "config" / "quick.yaml").read_text(encoding="utf-8"))


def study(**changed):
    return parse_study(QUICK | changed)


def test_what_is_there_is_done_and_costs_nothing_more(tmp_path):
    made = study()
    run = tmp_path / "results/quick/seed0/toy-s/ar_sft"
    run.mkdir(parents=True)
    before = {stage.rule: stage for stage in make_plan(made, CPU, {}, tmp_path).stages}
    (run / "training.json").touch()
    plan = make_plan(made, CPU, {}, tmp_path)
    after = {stage.rule: stage for stage in plan.stages}
    assert (plan.checkpoints, plan.checkpoints_done) == (5, 1)
    assert after["train"].hours == before["train"].hours
    assert 0 < after["train"].remaining_hours < before["train"].remaining_hours
    assert after["evaluate"] == before["evaluate"]


def hours(made, rule, rates=CPU):
    return {stage.rule: stage.hours for stage in make_plan(made, rates, {}).stages}[rule]


def test_hours_follow_the_work():
    assert hours(study(seeds=[0, 1]), "train") == pytest.approx(2 * hours(study(), "train"))
    twice = {"data": QUICK["data"] | {"stage1_examples": 8000, "stage2_examples": 8000}}
    assert hours(study(**twice), "train") == pytest.approx(2 * hours(study(), "train"))
    fast = load_rates("cpu-core", flops=2 * CPU.device.training_flops)
    assert hours(study(), "train", fast) == pytest.approx(hours(study(), "train") / 2)
    assert hours(study(), "evaluate", fast) == pytest.approx(hours(study(), "evaluate") / 2)


def test_hours_of_training_are_six_operations_a_parameter_and_column():
    """Of ar_sft alone, by hand: no masks, 4,000 examples."""
    variants = {name: QUICK["variants"][name] for name in ("base", "ar_sft")}
    tokens = CPU.table["examples"]["embedded"]["tokens"]
    size, told = parameters(study(), "toy-s")
    assert told == "counted"
    expected = 6 * size * 4000 * tokens / CPU.device.training_flops / 3600
    assert hours(study(variants=variants), "train") == pytest.approx(expected)


def test_masks_cost_what_they_are_columns_of():
    """A MARS variant with B = 4 has three masks for four response tokens."""

    def only(**settings):
        variants = {"base": {}, "a": {"parent": "base", "stages": [1], **settings}}
        return hours(study(variants=variants), "train")

    share = CPU.table["examples"]["embedded"]["response"]
    plain, mars = only(objective="ar_sft"), only(objective="mars", block_size=4)
    assert mars / plain == pytest.approx(1 + share * 3 / 4)


@pytest.mark.parametrize(("dtype", "each"), [("bfloat16", 4), ("float32", 4), ("float64", 8)])
def test_disk_is_of_weights_as_training_saves_them(dtype, each):
    """Computing in bfloat16 keeps them in float32; three states of a run are there at once."""
    made = study(training=QUICK["training"] | {"dtype": dtype})
    plan, (size, _) = make_plan(made, CPU, {}), parameters(made, "toy-s")
    disk = {stage.rule: stage.disk for stage in plan.stages}
    assert disk["train"] == pytest.approx(5 * size * each)
    assert plan.training_disk == pytest.approx(3 * size * 3 * each)


def test_the_size_of_a_model_that_is_not_here_is_in_its_name():
    hub = {"a": {"base": "Qwen/Qwen2.5-0.5B-Instruct"}, "b": {"base": "x/y", "paper": "7B"}}
    made = study(scales=hub)
    assert parameters(made, "a")[0] == 0.5e9
    assert parameters(made, "b") == (7e9, "from the name '7B'")
    with pytest.raises(PlanError, match=r"scales\.c\.base: 'x/y' is not here and names no size"):
        parameters(study(scales={"c": {"base": "x/y"}}), "c")


def test_a_truncated_file_of_weights_is_one_line(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    made = study(scales={"a": {"base": str(tmp_path)}})
    with pytest.raises(PlanError, match=r"model\.safetensors: cannot be read: fetch it again"):
        parameters(made, "a")


def test_rates_of_ones_own_replace_the_tables(tmp_path):
    mine = {"source": "mine", "hours": "GPU-hours", "training_flops": 1e13}
    mine |= {"decoding_flops": 1e12, "forward_seconds": 0.0}
    file = tmp_path / "rates.yaml"
    file.write_text(yaml.safe_dump({"devices": {"mine": mine}, "budget": 9}))
    rates = load_rates("mine", file=file)
    assert rates.device.training_flops == 1e13
    assert rates.answer("anything", "task") == 9
    assert load_rates("cpu-core", file=file).device == CPU.device


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "expected a mapping"),
        ("device: {}", "device: unknown; choose from devices"),
        ("devices: {mine: {hours: x}}", "devices.mine"),
        ("devices: [", "cannot be read"),
    ],
)
def test_rates_that_cannot_be_used_are_one_line(tmp_path, text, said):
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    with pytest.raises(PlanError, match=re.escape(said)) as raised:
        load_rates("mine", file=file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_prints_a_page_or_json(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["plan", "--configfile", "config/quick.yaml"]) == 0
    page = capsys.readouterr().out
    assert re.search(r"train +│ +5 │", page)
    assert "core-hours" in page
    assert "measured" in page
    assert cli.main(["plan", "--config", "config/paper.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoints"] == 14
    assert "assumed, not measured" in " ".join(told["notes"])
    (answers,) = [note for note in told["notes"] if note.startswith("answers:")]
    assert "prompts are not counted" in answers


def test_settings_are_changed_without_a_file_of_their_own(capsys):
    """… as `snakemake --config` has them; and what is assumed is said where it is read."""
    words = ["plan", "--config", str(ROOT / "config" / "paper.yaml"), "--set"]
    words += ["checkpoints=released", "evaluation={limit: 8, panels: []}"]
    assert cli.main(words) == 0
    page = capsys.readouterr().out
    assert not re.search(r"│ train", page)
    assert re.search(r"evaluate +│ +14 │", page)
    assert "- h200: assumed, not measured" in page
    for flops in ([], ["--flops", "4e14"]):
        assert cli.main([*words, "--json", *flops]) == 0
        cut = json.loads(capsys.readouterr().out)
        assert "assumed, not measured" in cut["notes"][0]
    whole = parse_study(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
    stages = {stage["rule"]: stage["hours"] for stage in cut["stages"]}
    assert 0 < stages["evaluate"] < hours(whole, "evaluate", load_rates("h200")) / 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("checkpoints", "give KEY=VALUE"),
        ("evaluation={", "is no YAML"),
        ("evaluation={limits: 3}", "evaluation.limits: unknown key; did you mean 'limit'?"),
    ],
)
def test_a_wrong_change_is_one_line(capsys, change, said):
    config = str(ROOT / "config" / "quick.yaml")
    assert cli.main(["plan", "--config", config, "--set", change]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert change in line
    assert said in line


def test_of_the_gpus_that_a_model_is_spread_over_all_are_held():
    paper = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text(encoding="utf-8"))
    one = parse_study(paper)
    four = parse_study(paper | {"evaluation": paper["evaluation"] | {"gpus_per_process": 4}})
    rates = load_rates("h200")
    for rule in ("evaluate", "throughput", "arrivals"):
        assert hours(four, rule, rates) == pytest.approx(4 * hours(one, rule, rates))
    assert hours(four, "train", rates) == hours(one, "train", rates)
    assert hours(four, "evaluate") == hours(one, "evaluate")  # (on CPU cores)


def test_an_unknown_device_is_one_line(capsys):
    config = str(ROOT / "config" / "quick.yaml")
    assert cli.main(["plan", "--config", config, "--device", "abacus"]) == 2
    said = capsys.readouterr().err
    assert "--device abacus: not in the table; choose from cpu-core, h200" in said
    assert len(said.splitlines()) == 1
