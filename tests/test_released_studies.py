"""Studies of real models: the paper's settings, and what a study of released checkpoints is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mars.analysis.missing import missing
from mars.analysis.parts import applies
from mars.config import ConfigError, Study, dump_study, load_study, parse_study

ROOT = Path(__file__).resolve().parents[1]
PAPER = yaml.safe_load((ROOT / "config/paper.yaml").read_text(encoding="utf-8"))
FACTS = yaml.safe_load((ROOT / "mars/analysis/paper/facts.yaml").read_text(encoding="utf-8"))


def paper(**changes: Any) -> Study:
    return parse_study({**PAPER, **changes})


def test_the_paper_s_study_has_the_paper_s_settings():
    study, told = paper(), FACTS["training"]
    training = study.training
    assert [made.base for made in study.scales.values()] == told["base_models"]
    assert study.data.source == told["dataset"]
    assert study.data.max_length == told["max_length"]
    assert training.epochs == told["epochs"]
    assert training.learning_rate == told["learning_rate"]
    assert training.batch_size == told["effective_batch_size"]
    assert training.warmup_ratio == told["warmup_ratio"]
    assert training.dtype == "bfloat16"
    assert {variant.ar_weight for variant in study.variants.values()} == {0.0, told["ar_weight"]}
    assert study.evaluation.max_new_tokens == 256
    asked = [(name, made.num_fewshot) for name, made in study.evaluation.benchmarks.items()]
    assert asked == [tuple(task) for task in FACTS["evaluation"]["tasks"].values()]
    taus = {*study.evaluation.thresholds, *study.evaluation.sweep_thresholds}
    assert taus == set(FACTS["thresholds_swept"])
    grid, timed = study.throughput, FACTS["wall_clock"]
    assert grid is not None
    assert (grid.prompts, grid.max_new_tokens) == (timed["questions"], timed["max_new_tokens"])
    assert grid.cache_blocks == timed["cache_blocks"]
    assert set(timed["batch_sizes"]) <= set(grid.batch_sizes)  # ours has 1 and 32 besides
    assert {grid.prompts_at(size) for size in timed["batch_sizes"]} == {timed["questions"]}
    assert grid.thresholds == [timed["tau"]]
    assert (grid.scale, grid.benchmark) == ("7B", "gsm8k_cot")
    assert {s: made.released for s, made in study.scales.items()} == {
        scale: FACTS["released_checkpoints"][scale] for scale in ("0.5B", "7B")
    }


def test_every_stage_of_the_paper_sees_all_conversations():
    study = paper()
    made = {name: variant.stages for name, variant in study.variants.items() if variant.objective}
    assert made.pop("ar_sft_10ep") == [1, 1]
    assert set(map(tuple, made.values())) == {(1,)}


def test_released_checkpoints_are_a_study_without_training():
    study = paper(checkpoints="released")
    assert not any(map(study.is_trained, study.variants))
    assert study.training_cost is None
    assert study.scales_of("mars_b4") == ["0.5B", "7B"]
    assert study.scales_of("ar_sft_10ep") == []
    assert study.left_out() == [("0.5B", "ar_sft_10ep"), ("0.5B", "mars_no_sft_stream_b4")]
    assert len(list(study.runs())) == 14
    assert study.given_checkpoint("7B", "base") == "Qwen/Qwen2.5-7B-Instruct"
    assert study.given_checkpoint("7B", "mars_b8") == "Xalphinions/MARS-Qwen2.5-7B-blk8"
    assert len(study.given_checkpoints()) == 14
    assert study.decodings("block_diffusion_b4", "gsm8k_cot")[0].alignment == "stream"
    assert parse_study(yaml.safe_load(dump_study(study))) == study
    assert [
        name for name in ("table2", "loss_curves", "training_overhead") if applies(study, name)
    ] == ["table2"]
    study.check_run(0, "7B", "mars_b4", "paper.yaml")
    with pytest.raises(ConfigError, match=r"ar_sft_10ep\.scales: unknown '0.5B'"):
        study.check_run(0, "0.5B", "ar_sft_10ep", "paper.yaml")


def test_what_was_not_released_is_missing_by_name(tmp_path):
    gaps = [
        gap for gap in missing(paper(checkpoints="released"), tmp_path) if "released no" in gap.what
    ]
    assert [gap.what.split(":")[0] for gap in gaps] == [
        "ar_sft_10ep at 0.5B",
        "mars_no_sft_stream_b4 at 0.5B",
    ]
    assert all("study=paper_trained checkpoints=trained" in gap.command for gap in gaps)
    assert not [gap for gap in missing(paper(), tmp_path) if "released no" in gap.what]


def test_a_trained_study_takes_nothing_that_was_released():
    study = paper()
    assert study.is_trained("mars_b4")
    assert study.left_out() == []
    assert study.given_checkpoints() == {
        "scales.0.5B.base": "Qwen/Qwen2.5-0.5B-Instruct",
        "scales.7B.base": "Qwen/Qwen2.5-7B-Instruct",
    }


WRONG = [
    ({"released": {"mars_b5": "a/b"}}, ["scales.7B.released", "did you mean 'mars_b8'"]),
    ({"released": {"base": "a/b"}}, ["scales.7B.released.base", "leave it out"]),
    ({"released": {"ar_sft_10ep": "a/b"}}, ["scales.7B.released.ar_sft_10ep", "at '7B'"]),
    ({"released": {"mars_b8": "a/b"}}, ["throughput.variant 'mars_b4' is not made at '7B'"]),
    ({"base": "a/b/c", "revision": "v1"}, ["scales.7B.revision: 'a/b/c' is no hub model"]),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_a_wrong_source_of_a_model_is_one_line(change, said):
    scales = PAPER["scales"] | {"7B": PAPER["scales"]["7B"] | change}
    with pytest.raises(ConfigError) as error:
        paper(scales=scales, checkpoints="released")
    assert "\n" not in str(error.value)
    for words in said:
        assert words in str(error.value)


def test_a_study_that_names_no_released_checkpoint():
    raw = yaml.safe_load((ROOT / "config/smollm2.yaml").read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="checkpoints is 'released' and no scale names any"):
        parse_study({**raw, "checkpoints": "released"})


def test_data_below_the_root_is_read_there(tmp_path):
    root = str(tmp_path)
    assert paper(data_root=root).data.source == "allenai/Dolci-Instruct-SFT"
    folder = tmp_path / "datasets" / "allenai" / "Dolci-Instruct-SFT"
    folder.mkdir(parents=True)
    data = PAPER["data"] | {"revision": "v1"}
    found = paper(data_root=root, data=data).data
    assert (found.source, found.revision) == (str(folder), None)
    (tmp_path / "gsm8k").mkdir()
    found = paper(data_root=root, data=data | {"source": "openai/gsm8k"}).data
    assert found.source == str(tmp_path / "gsm8k")  # where its benchmark lies too


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_study_file_is_right_and_named_after_itself(file):
    assert load_study(file).study == file.stem
