"""The configuration: a mistake is one line with file, key and remedy; every default is shown."""

from __future__ import annotations

import copy
import errno
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mars import cli, config
from mars.config import ConfigError, Decoding, load_study, parse_study

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = yaml.safe_load((ROOT / "config/embedded.yaml").read_text(encoding="utf-8"))


def study_with(path: str, value: object) -> dict:
    raw = copy.deepcopy(EMBEDDED)
    *parents, last = path.split("/")
    node = raw
    for part in parents:
        node = node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return raw


WRONG = [
    # path, value, what the line says
    ("trainig", {}, ["trainig", "did you mean 'training'"]),
    ("training/learning_rat", 1, ["training.learning_rat", "did you mean 'learning_rate'"]),
    ("training/xyzzy", 1, ["training.xyzzy", "known keys: learning_rate"]),
    ("variants/mars_b4/block", 4, ["variants.mars_b4.block", "did you mean 'block_size'"]),
    ("study", ..., ["study", "missing", "add it"]),
    ("training/epochs", "many", ["training.epochs", "valid integer", "'many'"]),
    ("training/epochs", 0, ["training.epochs", "greater than or equal to 1", "0"]),
    ("training/micro_batch_size", 48, ["micro_batch_size", "is now micro_batch_tokens"]),
    ("seeds", [], ["seeds", "at least one"]),
    ("seeds", [-1], ["seeds.0", "greater than or equal to 0"]),
    ("variants/mars_b4/block_size", 0, ["variants.mars_b4.block_size", "greater than or equal"]),
    ("variants/mars_b4/block_size", 1, ["variants.mars_b4.block_size", "at least 2"]),
    ("variants/mars_b4/parent", "ar_sfd", ["variants.mars_b4.parent", "did you mean 'ar_sft'"]),
    ("variants/mars_b4/parent", ..., ["variants.mars_b4", "parent"]),
    ("variants/mars_b4/stages", [], ["variants.mars_b4", "stage"]),
    ("variants/mars_b4/stages", [3], ["variants.mars_b4.stages.0", "1 or 2"]),
    ("variants/mars_b4/scales", ["toy-l"], ["variants.mars_b4.scales", "toy-l"]),
    ("variants/mars_b4/alignment", "left", ["variants.mars_b4.alignment", "'left'"]),
    ("variants/ar_sft/parent", "mars_b4", ["parent", "circle"]),
    ("variants/ar_sft/thresholds", [0.9], ["variants.ar_sft.thresholds", "ar has no threshold"]),
    ("variants/mars_b4/thresholds", [], ["variants.mars_b4.thresholds", "at least 1 item"]),
    ("variants/mars_b4/learning_rate", 0, ["variants.mars_b4.learning_rate", "greater than 0"]),
    ("variants/mars_b4/checkpoint", "x", ["variants.mars_b4.objective", "evaluated as it is"]),
    ("evaluation/thresholds", [1.0, 0.0], ["evaluation.thresholds.1", "greater than 0"]),
    ("evaluation/thresholds", [1.5], ["evaluation.thresholds.0", "less than or equal to 1"]),
    ("evaluation/panels", ["toy_gsm"], ["evaluation.panels", "did you mean 'toy_gsm8k'"]),
    ("evaluation/benchmarks", {}, ["evaluation.benchmarks", "at least one"]),
    ("evaluation/acceptance/rules", ["entropie"], ["evaluation.acceptance.rules.0", "'entropy'"]),
    ("evaluation/acceptance/variant", "mars", ["evaluation.acceptance.variant", "unknown 'mars'"]),
    ("evaluation/jacobi/variant", "ar", ["evaluation.jacobi.variant", "unknown 'ar'"]),
    ("throughput/scale", "toy-l", ["throughput.scale", "unknown 'toy-l'"]),
    ("throughput/variant", "mars_no_sft_b4", ["throughput.variant", "not made at 'toy-m'"]),
    ("throughput/thresholds", [0], ["throughput.thresholds", "greater than 0"]),
    ("throughput/batch_sizes", [], ["throughput.batch_sizes", "at least 1 item"]),
    ("throughput/batch_sizes", [4, 8, 4], ["throughput.batch_sizes", "each once"]),
    ("throughput/cache_blocks", [], ["throughput.cache_blocks", "at least 1 item"]),
    ("throughput/continuous/longest", 8, ["throughput.continuous.shortest 16", "swap them"]),
    ("throughput/trace/requests", [], ["throughput.trace.requests", "at least 1 item"]),
    ("training_cost/scale", "toy-l", ["training_cost.scale", "unknown 'toy-l'"]),
    ("training_cost/released", "ar_sft", ["training_cost.released", "not trained by mars"]),
    ("training_cost/ar_variant", "mars_b4", ["training_cost.ar_variant", "not trained by ar_sft"]),
    ("training_cost/variants", ["mars_no_sft_b4"], ["training_cost.variants", "not made at"]),
    ("training_cost/variants", [], ["training_cost.variants", "at least one"]),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_a_mistake_is_one_line_with_file_key_and_remedy(path, value, said):
    with pytest.raises(ConfigError) as caught:
        parse_study(study_with(path, value), "config/mine.yaml")
    line = str(caught.value)
    assert line.startswith("config/mine.yaml: ")
    assert "\n" not in line
    for words in said:
        assert words in line


@pytest.mark.parametrize("raw", [None, [], "embedded", 3])
def test_a_study_is_a_mapping(raw):
    with pytest.raises(ConfigError, match=r"mine.yaml: expected a mapping of settings"):
        parse_study(raw, "mine.yaml")


def test_a_missing_file_names_those_there_are():
    with pytest.raises(ConfigError, match=r"no such file; study files: .*embedded.yaml"):
        load_study(ROOT / "config" / "embeded.yaml")


def test_broken_yaml_names_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("study: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine.yaml: cannot be read") as caught:
        load_study(file)
    assert "\n" not in str(caught.value)


def test_the_committed_schema_is_the_generated_one():
    """`python -m mars config --schema --out workflow/schemas/config.schema.json` writes it."""
    committed = (ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8")
    assert committed == config.json_schema()


def test_the_default_study_shows_every_setting():
    shown = parse_study(EMBEDDED)
    for name in ("data", "training", "evaluation", "throughput", "training_cost"):
        assert set(EMBEDDED[name]) == set(type(getattr(shown, name)).model_fields)
    assert set(EMBEDDED["evaluation"]["acceptance"]) == set(config.Acceptance.model_fields)
    assert set(EMBEDDED["evaluation"]["jacobi"]) == set(config.Jacobi.model_fields)
    assert set(EMBEDDED) == set(config.Study.model_fields)


@pytest.mark.parametrize("file", ["config/embedded.yaml", "config/quick.yaml", "tests/mini.yaml"])
def test_a_study_written_out_is_the_same_study(file):
    study = load_study(ROOT / file)
    assert parse_study(yaml.safe_load(config.dump_study(study))) == study


def test_every_decoding_setting_has_a_name_of_its_own():
    study = load_study(ROOT / "config/embedded.yaml")
    for variant in study.variants:
        for benchmark in study.evaluation.benchmarks:
            made = study.decodings(variant, benchmark)
            assert len({decoding.id for decoding in made}) == len(made)


def test_the_settings_of_the_embedded_study():
    study = load_study(ROOT / "config/embedded.yaml")
    taus = [decoding.tau for decoding in study.decodings("mars_b8", "toy_gsm8k")]
    assert taus == [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert [made.tau for made in study.decodings("mars_b8", "toy_bbh")] == [1.0, 0.95]
    assert [made.decoder for made in study.decodings("ar_sft", "toy_bbh")] == ["ar", "jacobi"]
    assert len(study.decodings("mars_b4", "toy_gsm8k")) == 7 + 2 * 6  # and two more rules


# --- the command line


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mars", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_is_instant_and_names_the_commands():
    done = run("--help")
    assert done.returncode == 0
    for command in (
        *("train", "pretrain", "evaluate", "throughput", "training-cost"),
        *("figure", "report", "lm-eval"),
    ):
        assert f"\n    {command}" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--frobnicate"], "the following arguments are required"),
        (["config", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["trian"], "invalid choice"),
        (["config", "config/none.yaml"], "no such file; study files"),
    ],
)
def test_a_wrong_command_line_is_an_error_without_a_traceback(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("scale", "variant", "said"),
    [
        ("toy-x", "mars_b4", "scales: unknown 'toy-x'; did you mean 'toy-s'?"),
        ("toy-s", "mars_b5", "variants: unknown 'mars_b5'"),
        ("toy-m", "mars_no_sft_b4", "variants.mars_no_sft_b4.scales: unknown 'toy-m'"),
    ],
)
def test_a_run_that_the_study_has_not_is_named(scale, variant, said):
    words = ["--config", "config/embedded.yaml", "--seed", "0", "--scale", scale]
    words += ["--variant", variant, "--parent", "none", "--out", "none"]
    done = run("train", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mars: config/embedded.yaml: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_is_one_line(monkeypatch, capsys, tmp_path):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "results/x.csv")

    monkeypatch.setattr(cli.commands, "dump_study", full)
    assert cli.main(["config", str(ROOT / "config/quick.yaml"), "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert said == "mars: disk full while writing results/x.csv: free some space and run again\n"


def test_an_unknown_table_is_one_line(tmp_path):
    words = ["--config", "config/quick.yaml", "--results", str(tmp_path), "--out", str(tmp_path)]
    done = run("table", "table9", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("mars: unknown table 'table9'; choose from ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("error", [KeyError, TypeError, ValueError])
def test_a_bug_shows_its_traceback(monkeypatch, error):
    def broken(*_: object) -> None:
        raise error("not for the user to put right")

    monkeypatch.setattr(cli.commands, "dump_study", broken)
    with pytest.raises(error):
        cli.main(["config", str(ROOT / "config/quick.yaml")])


def test_file_names_tell_thresholds_apart():
    ids = {Decoding(decoder="mars", tau=tau).id for tau in (1.0, 0.9999999, 0.95, 0.9500001)}
    assert len(ids) == 4


def test_block_diffusion_is_decoded_as_it_was_trained():
    study = parse_study(study_with("variants/block_diffusion_b4/alignment", "own"))
    (made,) = study.decodings("block_diffusion_b4", "toy_bbh")
    assert (made.alignment, made.id) == ("own", "block_diffusion_B4_tau1_probability_cursor_own")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("seeds", [0, 0], "seeds"),
        ("variants/block_diffusion_b4/alignment", "decoder", "stream or own"),
        ("variants/mars_b4/alignment", "own", "decoder or stream"),
        ("evaluation/max_new_tokens", 0, "evaluation.max_new_tokens"),
        ("evaluation/acceptance/variant", "ar_sft", "evaluation.acceptance.variant"),
        ("throughput/ar_variant", "mars_b4", "throughput.ar_variant"),
    ],
)
def test_what_cannot_run_is_refused(path, value, message):
    with pytest.raises(ConfigError, match=message):
        parse_study(study_with(path, value), "x.yaml")


def test_a_seed_outside_the_study_is_refused():
    with pytest.raises(ConfigError, match=r"x.yaml: seeds: 7 is not one of \[0\]"):
        load_study(ROOT / "config/embedded.yaml").check_run(7, "toy-s", "mars_b4", "x.yaml")


@pytest.mark.parametrize(
    ("given", "decoder"),
    [
        ({"objective": "ar_sft"}, "ar"),
        ({"objective": "block_diffusion", "block_size": 4}, "block_diffusion"),
        ({"objective": "of_a_plugin", "block_size": 4}, "mars"),
        ({"objective": "of_a_plugin"}, "ar"),
        ({"checkpoint": "some/model", "block_size": 4}, "mars"),
        ({"checkpoint": "some/model"}, "ar"),
        ({"objective": "mars", "block_size": 4, "decoder": "of_a_plugin"}, "of_a_plugin"),
    ],
)
def test_what_reads_a_variant(given, decoder):
    assert config.Variant(**given).decoder == decoder


def test_thresholds_of_its_own_stand_in_for_the_studys():
    study = parse_study(study_with("variants/mars_b8/thresholds", [1.0, 0.8]))
    for benchmark in ("toy_gsm8k", "toy_bbh"):  # a panel, and none
        assert [made.tau for made in study.decodings("mars_b8", benchmark)] == [1.0, 0.8]
    assert study.decodings("mars_b4", "toy_bbh") == parse_study(EMBEDDED).decodings(
        "mars_b4", "toy_bbh"
    )


def test_only_the_benchmarks_own_datasets_have_short_folders(tmp_path):
    for folder in ("gsm8k", "bbh", "ifeval", "datasets/owner/bbh", "talk"):
        (tmp_path / folder).mkdir(parents=True)
    found = {
        name: study_with("data/source", name) | {"data_root": str(tmp_path)}
        for name in ("openai/gsm8k", "google/IFEval", "owner/bbh", "openia/gsm8k", "owner/talk")
    }
    sources = {name: parse_study(raw).data.source for name, raw in found.items()}
    assert sources == {
        "openai/gsm8k": str(tmp_path / "gsm8k"),
        "google/IFEval": str(tmp_path / "ifeval"),
        "owner/bbh": str(tmp_path / "datasets/owner/bbh"),
        "openia/gsm8k": "openia/gsm8k",
        "owner/talk": "owner/talk",
    }


def test_a_learning_rate_of_its_own_is_the_variants_alone():
    study = parse_study(study_with("variants/mars_b8/learning_rate", 0.5))
    assert study.training_of("mars_b8").learning_rate == 0.5
    assert study.training_of("mars_b4") == study.training


def test_a_limit_by_benchmark_cuts_the_named_ones_only():
    made = parse_study(EMBEDDED).evaluation.model_copy(update={"limit": {"toy_gsm8k": 7}})
    assert [made.limit_of(name) for name in ("toy_gsm8k", "toy_bbh")] == [7, None]
    assert made.model_copy(update={"limit": 5}).limit_of("toy_bbh") == 5
    assert made.model_copy(update={"limit": None}).limit_of("toy_bbh") is None


def test_a_limit_of_a_benchmark_that_is_not_run_is_refused():
    broken = EMBEDDED | {"evaluation": EMBEDDED["evaluation"] | {"limit": {"gsm8k": 3}}}
    with pytest.raises(ConfigError, match=r"evaluation.limit.*gsm8k"):
        parse_study(broken)


def test_the_home_folder_of_data_root_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("data/gsm8k", "data/models/owner/tiny"):
        (tmp_path / folder).mkdir(parents=True)
    raw = study_with("data/source", "openai/gsm8k") | {"data_root": "~/data"}
    raw["scales"] = {"toy-s": {"base": "owner/tiny"}, "toy-m": {"base": "embedded:toy-m"}}
    study = parse_study(raw)
    assert study.data_root == str(tmp_path / "data")
    assert study.data.source == str(tmp_path / "data" / "gsm8k")
    assert study.base("toy-s") == str(tmp_path / "data" / "models" / "owner" / "tiny")
