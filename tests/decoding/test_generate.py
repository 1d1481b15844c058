"""`mars.generate` and `mars.stream`: what may be asked, and that it is the engine's own answer."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch

import mars
from mars import models
from mars.config import Decoding
from mars.decoding import Request, make_decoder
from mars.decoding.contract import DecodingError
from mars.decoding.costs import CostTable
from mars.decoding.engine import Engine
from mars.decoding.generate import api, run, tables
from mars.decoding.generate.options import conversations
from mars.decoding.linears import PackedLinear

BASE = "embedded:toy-s"
PROMPTS = ["how many apples ?", "write f ( x )", "é", "which is larger ?"]


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """In float64, where a row's answer is the same in every batch."""
    return {
        "model": models.load_model(BASE, "float64"),
        "tokenizer": models.load_tokenizer(BASE),
        "block_size": 4,
        "max_new_tokens": 24,
    }


@pytest.fixture
def settings(monkeypatch) -> list[Decoding]:
    """The settings of each decoder that is made."""
    made: list[Decoding] = []

    def spy(model, tokenizer, settings, **rest):
        made.append(settings)
        return make_decoder(model, tokenizer, settings, **rest)

    monkeypatch.setattr(api, "make_decoder", spy)
    return made


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the base whose record says how it was trained."""

    def make(**trained: Any) -> str:
        folder = tmp_path / "model"
        shutil.copytree(models.resolve_checkpoint(BASE), folder, dirs_exist_ok=True)
        record = json.loads((folder / "mars.json").read_text())
        record["recipe"] = {"settings": trained}
        (folder / "mars.json").write_text(json.dumps(record))
        return str(folder)

    return make


def by_the_decoder(loaded, prompt, tau):
    tokenizer = loaded["tokenizer"]
    chat = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    decoder = make_decoder(
        loaded["model"], tokenizer, Decoding(decoder="mars", block_size=4, tau=tau)
    )
    [made] = decoder.generate([Request(tuple(ids), loaded["max_new_tokens"])])
    return made


def test_each_answer_is_the_decoders_at_its_own_threshold(loaded):
    taus = [1, 0.95, 0.5, 0.2]
    answers = mars.generate(prompts=PROMPTS, tau=taus, slots=2, **loaded)
    for prompt, tau, answer in zip(PROMPTS, taus, answers, strict=True):
        made = by_the_decoder(loaded, prompt, tau)
        assert list(answer.ids) == made.ids
        assert (answer.tokens, answer.forwards) == (made.tokens, made.forwards)
        assert answer.tokens_per_forward == round(made.tokens / made.forwards, 4)
        assert answer.finish == made.finish
        assert answer.text == loaded["tokenizer"].decode(made.ids, skip_special_tokens=True)
        assert answer.seconds > 0
    assert answers[0].forwards == answers[0].tokens
    assert answers[3].forwards < answers[3].tokens


def test_one_text_or_one_chat_is_one_answer(loaded):
    chat = [{"role": "user", "content": PROMPTS[0]}]
    answer = mars.generate(prompts=PROMPTS[0], **loaded)
    again = mars.generate(prompts=chat, **loaded)
    both = mars.generate(prompts=[PROMPTS[0], chat], **loaded)
    assert {answer.text, again.text, both[0].text, both[1].text} == {answer.text}
    assert mars.generate(prompts=[], **loaded) == []
    system = [{"role": "system", "content": "be brief"}, *chat]
    assert conversations(system) == ([system], True)
    assert conversations([system]) == ([system], False)


def test_what_is_streamed_adds_up_to_the_answers(loaded):
    answers = mars.generate(prompts=PROMPTS, tau=0.5, **loaded)
    texts, pieces = [""] * len(PROMPTS), 0
    for number, text in mars.stream(prompts=PROMPTS, tau=0.5, slots=2, **loaded):
        assert text
        texts[number] += text
        pieces += 1
    assert texts == [answer.text for answer in answers]
    assert pieces > 2 * len(PROMPTS)


def test_waiting_prompts_take_their_slots_longest_first(loaded, monkeypatch):
    """And texts, answers and thresholds stay with their prompts."""
    prompts = [" ".join([PROMPTS[0]] * times) for times in (1, 3, 2, 4)]
    taus = [1, 0.5, 0.95, 0.2]
    waiting: list[Request] = []

    class Spy(Engine):
        def submit(self, request: Request) -> int:
            waiting.append(request)
            return super().submit(request)

    monkeypatch.setattr(run, "Engine", Spy)
    answers = mars.generate(prompts=prompts, tau=taus, slots=1, **loaded)
    assert [request.tau for request in waiting] == [0.2, 0.5, 0.95, 1]
    texts, order = [""] * len(prompts), []
    for number, text in mars.stream(prompts=prompts, tau=taus, slots=1, **loaded):
        texts[number] += text
        order += [number] if number not in order else []
    assert order == [3, 1, 2, 0]
    assert texts == [answer.text for answer in answers]
    for prompt, tau, answer in zip(prompts, taus, answers, strict=True):
        assert list(answer.ids) == by_the_decoder(loaded, prompt, tau).ids


def test_a_stop_sequence_is_no_part_of_the_answer(loaded):
    whole = mars.generate(prompts=PROMPTS[1], tau=1, **loaded).text
    stop = whole[len(whole) // 2 :][:3]
    answer = mars.generate(prompts=PROMPTS[1], tau=1, stop=stop, **loaded)
    assert answer.finish == "stop"
    assert answer.text == whole[: whole.index(stop)]
    pieces = mars.stream(prompts=PROMPTS[1], tau=1, stop=[stop], **loaded)
    assert "".join(text for _, text in pieces) == answer.text


@pytest.mark.parametrize("decoder", ["ar", "jacobi", "block_diffusion"])
def test_every_method_answers_and_streams(loaded, decoder):
    wish = {name: value for name, value in loaded.items() if name != "block_size"}
    answer = mars.generate(prompts=PROMPTS[0], decoder=decoder, **wish)
    pieces = mars.stream(prompts=PROMPTS[0], decoder=decoder, **wish)
    assert "".join(text for _, text in pieces) == answer.text
    if decoder != "block_diffusion":  # exact
        assert answer.ids == mars.generate(prompts=PROMPTS[0], tau=1, **loaded).ids


def test_samples_are_drawn_by_their_seed(loaded):
    wish = {"prompts": PROMPTS[0], "temperature": 2.0, **loaded}
    assert mars.generate(seed=1, **wish).ids == mars.generate(seed=1, **wish).ids
    assert mars.generate(seed=1, **wish).ids != mars.generate(seed=2, **wish).ids


@pytest.mark.parametrize(
    ("trained", "asked", "expected"),
    [
        ({"objective": "mars", "block_size": 8}, {}, ("mars", 8, 0.95)),
        ({"objective": "mars", "block_size": 8}, {"block_size": 2}, ("mars", 2, 0.95)),
        ({"objective": "mars", "block_size": 8}, {"decoder": "ar"}, ("ar", 1, 1.0)),
        (
            {"objective": "block_diffusion", "block_size": 3, "alignment": "own"},
            {"tau": 0.5},
            ("block_diffusion", 3, 0.5),
        ),
    ],
)
def test_a_checkpoint_is_read_as_it_was_trained(
    checkpoint, settings, caplog, trained, asked, expected
):
    mars.generate(checkpoint(**trained), "hi", max_new_tokens=2, **asked)
    [made] = settings
    assert (made.decoder, made.block_size, made.tau) == expected
    assert made.alignment == trained.get("alignment")
    assert not caplog.records


def test_a_model_without_mars_training_is_named_once(checkpoint, settings, caplog):
    folder = checkpoint(objective="ar_sft", block_size=1)
    mars.generate(folder, ["hi", "ho"], max_new_tokens=2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no mars training" in caplog.text
    assert (settings[0].decoder, settings[0].block_size) == ("mars", 4)
    caplog.clear()
    mars.generate(folder, "hi", tau=1, max_new_tokens=2)
    assert not caplog.records


def test_a_loaded_model_is_read_as_its_checkpoint_was_trained(checkpoint, settings):
    folder = checkpoint(objective="mars", block_size=8)
    model, tokenizer = models.load_model(folder), models.load_tokenizer(folder)
    mars.generate(model, "hi", tokenizer=tokenizer, max_new_tokens=2)
    assert settings[0].block_size == 8


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tau": 1.5}, "tau: .* got 1.5"),
        ({"tau": [0.5, 0.6]}, "tau has 2 values for 1 prompts"),
        ({"tau": 0.5, "decoder": "ar"}, "tau is 0.5, but ar has no threshold"),
        ({"rule": "certainty"}, "rule: .* got 'certainty'"),
        ({"cache": "block"}, "set cache_block"),
        ({"dtype": "float23"}, "dtype 'float23' is unknown: set"),
        ({"device": "gpu"}, "device 'gpu' is unknown: set cpu"),
        ({"threads": 0}, "threads is 0: it must be at least 1"),
        ({"slots": 0}, "slots is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"stop": [""]}, "empty stop"),
        ({"costs": "t.json"}, "draft="),
        ({"draft": "auto", "costs": "no-such.json"}, "no-such.json"),
        ({"tokenizer": object()}, "brings its own"),
        ({"prompts": 3}, "prompts: a int"),
        ({"prompts": [3]}, "prompt 0: 3 is no prompt"),
        ({"prompts": [{"role": "user"}]}, "is no message"),
        ({"prompts": [[{"role": "assistant", "content": "so"}]]}, "last word"),
        ({"prompts": "apples " * 300}, "leaves no room"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(asked, message):
    with pytest.raises(DecodingError, match=message) as error:
        mars.generate(BASE, **{"prompts": "hi", "block_size": 4, **asked})
    assert "\n" not in str(error.value)


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),
    reason="packs weights for oneDNN, which this PyTorch lacks",
)
def test_linears_are_packed_where_asked(monkeypatch):
    decoded = []

    def spy(model, *words, **rest):
        decoded.append(model)
        return make_decoder(model, *words, **rest)

    monkeypatch.setattr(api, "make_decoder", spy)
    for linears in ("packed", "stock"):
        mars.generate(BASE, "hi", block_size=4, max_new_tokens=2, linears=linears)
    packed = [any(isinstance(m, PackedLinear) for m in model.modules()) for model in decoded]
    assert packed == [True, False]


def test_a_loaded_model_brings_its_own_dtype_and_needs_its_tokenizer(loaded):
    with pytest.raises(DecodingError, match="add tokenizer="):
        mars.generate(loaded["model"], "hi")
    with pytest.raises(DecodingError, match="leave them out"):
        mars.generate(prompts="hi", dtype="float32", **loaded)
    with pytest.raises(DecodingError, match="leave them out"):
        mars.generate(prompts="hi", linears="packed", **loaded)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="no option 'taw'; did you mean 'tau'"):
        mars.generate(BASE, "hi", taw=0.9)
    assert set(api.prepare.__kwdefaults__) == set(mars.Options.__annotations__)


def test_importing_the_package_is_instant():
    code = (
        "import sys, mars; assert 'torch' not in sys.modules; assert 'generate' in dir(mars);"
        "mars.generate; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="generat"):
        mars.generat  # noqa: B018


# ---- draft: auto


def table(**changed: Any) -> CostTable:
    line = {1: {1: 1.0, 7: 1.1}}
    facts = {"machine": "m", "threads": 1, "checkpoint": "", "dtype": "", "linears": ""}
    return CostTable(**{**facts, "length": 8, "body": line, "head": line, **changed})


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The row counts of each measurement; tables are kept in a folder of the test's own."""
    calls = []

    def measure(backbone, mask_id, sizes, width, **facts):
        calls.append(sizes)
        return table(**facts)

    monkeypatch.setattr(tables, "measure_costs", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calls


def auto(model=BASE, prompts="hi", **options):
    return mars.generate(
        model, prompts, draft="auto", max_new_tokens=2, **{"block_size": 4, **options}
    )


def test_costs_are_measured_once_and_kept(measured, tmp_path, caplog):
    auto()
    assert measured == [[1]]
    [file] = (tmp_path / "mars").iterdir()
    assert str(file) in caplog.text
    assert CostTable.load(file).checkpoint == models.checkpoint_hash(
        models.resolve_checkpoint(BASE)
    )
    auto()
    assert measured == [[1]]
    file.write_text("torn")
    auto()
    assert measured == [[1], [1]]
    auto(prompts=["hi", "ho", "ha"])
    auto(block_size=8)
    assert measured[2:] == [[1, 2, 4], [1]]
    assert len(list((tmp_path / "mars").iterdir())) == 3


def test_costs_of_a_model_without_a_file_are_not_kept(measured, tmp_path, loaded):
    wish = {name: loaded[name] for name in ("model", "tokenizer")}
    auto(**wish)
    assert measured == [[1]]
    assert not list(tmp_path.iterdir())


def test_no_costs_are_measured_for_a_method_that_drafts_nothing(measured):
    with pytest.raises(DecodingError, match="draft: auto is of mars only"):
        auto(decoder="ar", block_size=None)
    assert measured == []


def test_costs_may_be_given(measured, tmp_path):
    table().save(tmp_path / "costs.json")
    auto(costs=tmp_path / "costs.json")
    auto(costs=table())
    assert measured == []
