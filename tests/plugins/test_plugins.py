"""Plug-ins: good ones are registered, broken ones are named before anything is trained."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml

from mars.config import Study, parse_study
from mars.decoding import DECODERS
from mars.evaluation.records import decoding_code
from mars.plugins import PluginError, find_plugins, resolve_plugins
from mars.plugins import files as plugin_files
from mars.plugins.load import load_plugins
from mars.plugins.probe import probe_plugins
from mars.training.objectives import REGISTRY, outside_code

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = yaml.safe_load((ROOT / "config/embedded.yaml").read_text(encoding="utf-8"))

GOOD_OBJECTIVE = """
    from mars.training.objectives.mars import Mars

    class Mine(Mars):
        def row(self, example, key):
            return super().row(example, key)

    OBJECTIVES = {"mine": Mine}
"""
GOOD_DECODER = """
    from mars.decoding.mars import MarsDecoder

    class Lenient(MarsDecoder):
        def agreement(self, step):
            return step.confidence >= step.tau * 0.8

    DECODERS = {"lenient": Lenient}
"""


@pytest.fixture(autouse=True)
def _own_registries():
    """What a test registers is gone after it."""
    kept = [(registry, dict(registry)) for registry in (REGISTRY, DECODERS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


def study_with(plugins: list[str], **variant: object) -> Study:
    raw = EMBEDDED | {"plugins": plugins, "throughput": None, "training_cost": None}
    mine = {"parent": "ar_sft", "stages": [2], "block_size": 4, "scales": ["toy-s"]} | variant
    raw["variants"] = EMBEDDED["variants"] | {"new": mine}
    return parse_study(raw)


@pytest.fixture
def write(tmp_path):
    def to(name: str, text: str) -> str:
        (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return str(tmp_path / name)

    return to


# ---------------------------------------------------------------------------------- good ones


def test_an_objective_of_ones_own_learns(write):
    study = study_with([write("mine.py", GOOD_OBJECTIVE)], objective="mine")
    assert study.variants["new"].decoder == "mars"  # it drafts
    [plugin] = load_plugins(study, "mine.yaml")
    assert plugin.names == {"objective": ("mine",), "decoder": ()}
    assert REGISTRY["mine"].__name__ == "Mine"
    assert probe_plugins(study, "mine.yaml") == ["variants.new.objective: mine learns"]


def test_a_decoder_of_ones_own_decodes(write):
    path = write("lenient.py", GOOD_DECODER)
    study = study_with([path], objective="mars", decoder="lenient")
    load_plugins(study, "mine.yaml")
    assert probe_plugins(study, "mine.yaml") == ["variants.new.decoder: lenient decodes"]
    settings = study.decodings("new", "toy_gsm8k")
    assert {made.decoder for made in settings} == {"lenient"}
    assert settings[0].id.startswith("lenient_B4_tau1_")


def test_the_example_learns():
    study = study_with(["examples/random_block.py"], objective="random_block", block_size=8)
    load_plugins(study, str(ROOT / "config/embedded.yaml"))
    assert probe_plugins(study, "mine.yaml")


def test_a_path_starts_at_the_root_or_beside_the_study(write, tmp_path, monkeypatch):
    write("mine.py", GOOD_OBJECTIVE)
    study = study_with(["mine.py"], objective="mine")
    found = resolve_plugins(study, [tmp_path], "mine.yaml")
    assert found.plugins == [str(tmp_path / "mine.py")]
    assert resolve_plugins(found, [], "mine.yaml") == found
    monkeypatch.chdir(tmp_path)
    assert resolve_plugins(study, [], "mine.yaml").plugins == ["mine.py"]


def test_an_installed_plugin_is_found_by_its_entry_point(write, tmp_path, monkeypatch):
    write("installed_plugin.py", GOOD_OBJECTIVE)
    folder = tmp_path / "installed-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[mars.plugins]\nany = installed_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    study = study_with([], objective="mine")
    [plugin] = load_plugins(study, "mine.yaml")
    assert str(plugin) == "installed_plugin"
    assert REGISTRY["mine"].__module__ == "installed_plugin"


def test_an_installed_plugin_that_nobody_names_is_left_alone(monkeypatch):
    monkeypatch.setattr(plugin_files, "_installed", lambda: pytest.fail("looked at"))
    assert find_plugins(study_with([], objective="mars"), "mine.yaml") == []


def test_a_new_file_is_a_new_decoder_and_a_new_objective(write):
    """What another version of it decoded or trained is not taken for this one's."""
    before = {name: decoding_code(name) for name in DECODERS}
    path = write("both.py", GOOD_DECODER + GOOD_OBJECTIVE)
    study = study_with([path], objective="mine", decoder="lenient")
    load_plugins(study, "mine.yaml")
    first = decoding_code("lenient"), outside_code(REGISTRY["mine"])
    assert {name: decoding_code(name) for name in before} == before
    assert outside_code(REGISTRY["mars"]) is None
    write("both.py", GOOD_DECODER.replace("0.8", "0.7") + GOOD_OBJECTIVE)
    load_plugins(study, "mine.yaml")
    second = decoding_code("lenient"), outside_code(REGISTRY["mine"])
    assert first[0] != second[0] != before["mars"]
    assert first[1] != second[1]


# -------------------------------------------------------------------------------- broken ones

HEAD = "from mars.training.objectives.mars import Mars\n"
TAIL = '\nOBJECTIVES = {"mine": Mine}\n'
BROKEN_FILES = {
    "a syntax error": ("class Mine(\n", ["line 1", "was never closed"], True),
    "no table": ("x = 1\n", ['add OBJECTIVES = {"name": Class}'], False),
    "a table that is made": ("OBJECTIVES = dict(mine=1)\n", ["must be written out"], False),
    "a built-in name": (HEAD + 'OBJECTIVES = {"mars": Mars}', ["'mars' is built in"], False),
    "an error on import": (
        "import torch\n" + HEAD + 'raise RuntimeError("no luck")' + TAIL,
        ["cannot be imported: RuntimeError: no luck"],
        True,
    ),
    "a module that is not there": (
        "import nowhere_to_be_found" + TAIL,
        ["ModuleNotFoundError: No module named 'nowhere_to_be_found'"],
        True,
    ),
    "no class": (
        "Mine = 3" + TAIL,
        ["3 is no subclass of mars.training.objectives.base.Objective"],
        False,
    ),
    "methods that are missing": (
        "from mars.training.objectives import Objective\nclass Mine(Objective): pass" + TAIL,
        ["lacks padded(self, length: 'int') -> 'int', row(self, example: 'Encoded', key: 'Key')"],
        False,
    ),
    "no predicate": (
        "from mars.training.objectives import Objective\n"
        "class Mine(Objective):\n"
        "    def row(self, example, key): ...\n"
        "    def padded(self, length): ..." + TAIL,
        ["lacks predicate, a mars.streams.Predicate"],
        False,
    ),
    "a method that takes too little": (
        HEAD + "class Mine(Mars):\n    def row(self, example): ..." + TAIL,
        ["Mine.row(self, example) must take what row(self, example: 'Encoded', key: 'Key')"],
        False,
    ),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file_is_one_line_and_its_own_traceback(write, case):
    text, said, has_traceback = BROKEN_FILES[case]
    path = write("mine.py", text)
    with pytest.raises(PluginError) as caught:
        load_plugins(study_with([path], objective="mine"), "mine.yaml")
    line = str(caught.value)
    assert line.startswith("mine.yaml: plugins")
    assert path in line
    assert "\n" not in line
    for words in said:
        assert words in line
    own = caught.value.own_traceback
    assert bool(own) == has_traceback
    if own:
        assert f'File "{path}", line' in own
        assert "importlib" not in own


BROKEN_OBJECTIVES = {
    "a loss that is no number": (
        "def loss(self, model, batch):\n"
        "        from mars.training.objectives import Terms\n"
        "        return Terms(None, super().loss(model, batch).mask * float('nan'))",
        "loss().mask is nan on a probe batch",
    ),
    "a loss without a gradient": (
        "def loss(self, model, batch):\n"
        "        from mars.training.objectives import Terms\n"
        "        return Terms(None, super().loss(model, batch).mask.detach())",
        "loss() has no gradient",
    ),
    "a loss that nothing changes": (
        "def loss(self, model, batch):\n"
        "        from mars.training.objectives import Terms\n"
        "        return Terms(None, super().loss(model, batch).mask * 0)",
        "the gradient of loss() is zero",
    ),
    "a loss that is a number": (
        "def loss(self, model, batch):\n        return super().loss(model, batch).mask",
        "loss() must give Terms",
    ),
    "a mean": (
        "def loss(self, model, batch):\n"
        "        from mars.training.objectives import Terms\n"
        "        n = batch.layout.shape[0]\n"
        "        return Terms(None, super().loss(model, batch).mask / n)",
        "packed in one row",
    ),
    "a row that is drawn anew each time": (
        "def row(self, example, key):\n"
        "        import random\n"
        "        return super().row(example, (random.getrandbits(30), 0))",
        "two layouts for one key",
    ),
    "a row that is none": (
        "def row(self, example, key):\n        return 3",
        "row() must give a mars.streams.Layout, not 3",
    ),
    "more positions than it says": ("def padded(self, length):\n        return 5", "positions"),
}


@pytest.mark.parametrize("case", BROKEN_OBJECTIVES)
def test_an_objective_that_cannot_train_fails_on_the_probe(write, case):
    method, said = BROKEN_OBJECTIVES[case]
    path = write("mine.py", HEAD + "class Mine(Mars):\n    " + method + TAIL)
    study = study_with([path], objective="mine")
    load_plugins(study, "mine.yaml")
    with pytest.raises(
        PluginError, match=r"^mine.yaml: variants.new.objective: 'mine': "
    ) as caught:
        probe_plugins(study, "mine.yaml")
    assert said in str(caught.value)


def test_what_an_objective_raises_on_the_probe_is_shown(write):
    text = HEAD + "class Mine(Mars):\n    def padded(self, length):\n        return 1 / 0" + TAIL
    path = write("mine.py", text)
    study = study_with([path], objective="mine")
    load_plugins(study, "mine.yaml")
    with pytest.raises(PluginError, match="ZeroDivisionError: division by zero") as caught:
        probe_plugins(study, "mine.yaml")
    own = caught.value.own_traceback
    assert own.splitlines()[1].strip().startswith(f'File "{path}", line 4')
    assert "return 1 / 0" in own


BROKEN_DECODERS = {
    "[MASK] among its tokens": (
        "def predict(self, logits):\n"
        "        tokens, confidence = super().predict(logits)\n"
        "        return tokens * 0 + self.mask_id, confidence",
        "emitted [MASK]",
    ),
    "nothing": (
        "def generate(self, requests, slots=None):\n        return []",
        "a Generation for each of 3 requests",
    ),
    "counts that do not add up": (
        "def generate(self, requests, slots=None):\n"
        "        made = super().generate(requests, slots)\n"
        "        made[0].accepted.append(1)\n"
        "        return made",
        "accepted counts that sum to its tokens",
    ),
}


@pytest.mark.parametrize("case", BROKEN_DECODERS)
def test_a_decoder_that_breaks_the_contract_fails_on_the_probe(write, case):
    method, said = BROKEN_DECODERS[case]
    head = "from mars.decoding.mars import MarsDecoder\nclass Mine(MarsDecoder):\n    "
    path = write("mine.py", head + method + '\nDECODERS = {"mine": Mine}\n')
    study = study_with([path], objective="mars", decoder="mine")
    load_plugins(study, "mine.yaml")
    with pytest.raises(PluginError, match=r"^mine.yaml: variants.new.decoder: 'mine': ") as caught:
        probe_plugins(study, "mine.yaml")
    assert said in str(caught.value)


def test_a_decoder_without_a_threshold_says_so(write):
    text = GOOD_DECODER.replace("def agreement", "thresholded = False\n\n        def agreement")
    study = study_with([write("x.py", text)], objective="mars", decoder="lenient")
    load_plugins(study, "mine.yaml")
    with pytest.raises(PluginError, match=r"no threshold .* set thresholds: \[1.0\]"):
        probe_plugins(study, "mine.yaml")
    one = study_with(study.plugins, objective="mars", decoder="lenient", thresholds=[1.0])
    assert probe_plugins(one, "mine.yaml")


def test_a_file_that_is_not_there_is_named():
    study = study_with(["examples/nothing.py"], objective="mine")
    with pytest.raises(
        PluginError, match=r"^mine.yaml: plugins: examples/nothing.py: no such file"
    ):
        load_plugins(study, "mine.yaml")


def test_one_name_belongs_to_one_plugin(write):
    paths = [write("one.py", GOOD_OBJECTIVE), write("two.py", GOOD_OBJECTIVE)]
    with pytest.raises(PluginError, match=r"two.py: objective 'mine' is .*one.py's too"):
        load_plugins(study_with(paths, objective="mine"), "mine.yaml")


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"objective": "marz"}, "variants.new.objective: unknown 'marz'; did you mean 'mars'?"),
        ({"objective": "mime"}, "variants.new.objective: unknown 'mime'; did you mean 'mine'?"),
        (
            {"objective": "mars", "decoder": "jacoby"},
            "variants.new.decoder: unknown 'jacoby'; did you mean 'jacobi'?",
        ),
        ({"objective": "xyz"}, "choose from ar_sft, mars, block_diffusion, mine"),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest(write, variant, said):
    study = study_with([write("mine.py", GOOD_OBJECTIVE)], **variant)
    with pytest.raises(PluginError) as caught:
        find_plugins(study, "mine.yaml")
    assert said in str(caught.value)
