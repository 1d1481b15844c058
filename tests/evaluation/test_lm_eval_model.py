"""The lm-eval model honours what tasks ask, keeps what it decoded, and refuses the rest."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from mars.config import Decoding
from mars.evaluation.lm_eval_model import DEFAULT_BUDGET, MarsLM
from mars.evaluation.records import RecordStore, digest, read_records
from mars.evaluation.source import EvaluationError, Source, open_checkpoint

from .conftest import FakeDecoders

MARS = Decoding(decoder="mars", block_size=4, tau=0.95)


def ask(doc_id: int, prompt: str, task: str = "toy", **gen_kwargs: Any) -> Instance:
    return Instance(
        request_type="generate_until",
        doc={},
        arguments=(prompt, gen_kwargs),
        idx=0,
        metadata=(task, doc_id, 1),
    )


@pytest.fixture
def lm(source: Source, fake: FakeDecoders) -> MarsLM:
    return MarsLM(source, batch_size=4, block_size=4, tau=0.95)


def test_registered() -> None:
    assert get_model("mars") is MarsLM


def test_until_is_honoured_and_cut(lm: MarsLM, fake: FakeDecoders) -> None:
    fake.answer = lambda _: "one two Question: three"
    assert lm.generate_until([ask(0, "p", until=["Question:", "\n\n"])]) == ["one two "]
    assert fake.batches[0][0].stop == ("Question:", "\n\n")
    assert lm.used[0].finish == "stop"
    assert not lm.used[0].truncated


def test_end_of_turn_is_no_text_stop(lm: MarsLM, fake: FakeDecoders, tokenizer: Any) -> None:
    fake.answer = lambda _: "fine"
    assert lm.generate_until([ask(0, "p", until=[tokenizer.eos_token, ""])]) == ["fine"]
    assert fake.batches[0][0].stop == ()
    assert lm.generate_until([ask(1, "p", until="fi")]) == [""]


def test_budget(lm: MarsLM, source: Source, fake: FakeDecoders) -> None:
    fake.answer = lambda _: "word " * 30
    lm.generate_until([ask(0, "p", max_gen_toks=7), ask(1, "p"), ask(2, "p", max_new_tokens=9)])
    assert sorted(r.max_new_tokens for r in fake.batches[0]) == [7, 9, DEFAULT_BUDGET]
    assert lm.used[0].truncated
    assert lm.used[0].finish == "budget"
    assert lm.used[0].tokens == 7
    fixed = MarsLM(source, max_new_tokens=5)
    fixed.generate_until([ask(0, "p", max_gen_toks=7), ask(1, "p")])
    assert [r.max_new_tokens for r in fake.batches[-1]] == [5, 5]
    with pytest.raises(EvaluationError, match="max_gen_toks is 0"):
        lm.generate_until([ask(0, "p", max_gen_toks=0)])


def test_temperature(lm: MarsLM, source: Source, fake: FakeDecoders) -> None:
    lm.generate_until(
        [
            ask(0, "p", temperature=0.7),
            ask(1, "p", temperature=0.7, do_sample=False),
            ask(2, "p", do_sample=True, temperature=0.4),
            ask(3, "p"),
        ]
    )
    assert [s.temperature for s in fake.settings] == [0.7, 0.0, 0.4]
    assert all(s.tau == 0.95 for s in fake.settings)
    study_wide = MarsLM(source, temperature=0.9)
    study_wide.generate_until([ask(0, "p", temperature=0.7)])
    assert fake.settings[-1].temperature == 0.9


def test_unknown_generation_arguments_are_errors(lm: MarsLM) -> None:
    with pytest.raises(EvaluationError, match="toy: generation_kwargs top_k, top_p cannot"):
        lm.generate_until([ask(0, "p", top_p=0.9, top_k=3)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"taw": 0.9}, "'taw' is unknown; did you mean 'tau'"),
        ({"tau": 1.5}, "tau=1.5"),
        ({"block_size": 0}, "block_size=0"),
        ({"decoder": "mras"}, "unknown 'mras'; did you mean 'mars'"),
        ({"batch_size": "auto"}, "batch_size is 'auto'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"dtype": "float32"}, "where the checkpoint is opened"),
        ({"decoder": "ar", "tau": 0.5}, "tau is 0.5, but ar has no threshold"),
        ({"decoder": "ar", "block_size": 4}, "block_size is 4, but ar drafts nothing"),
        ({"decoder": "jacobi", "cache": "block", "cache_block": 4}, "no block cache"),
        ({"cache": "block"}, "set cache_block"),
        ({"cache_block": 8}, "leave it out"),
    ],
)
def test_wrong_arguments(source: Source, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        MarsLM(source, **arguments)


def test_model_arguments_go_before_lm_evals_defaults(source: Source) -> None:
    made = MarsLM.create_from_arg_obj(
        {"pretrained": source, "batch_size": 8}, {"batch_size": 1, "device": None}
    )
    assert made.batch_size == 8


def test_no_log_likelihoods(lm: MarsLM) -> None:
    for method in (lm.loglikelihood, lm.loglikelihood_rolling, lm._loglikelihood_tokens):
        with pytest.raises(EvaluationError, match="generate_until"):
            method([])


def test_chat_template_adds_no_second_special_token(lm: MarsLM, tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "how many ?"}]
    text = lm.apply_chat_template(chat)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert lm.tok_encode(text) == list(ids)
    prefilled = lm.apply_chat_template(
        [*chat, {"role": "assistant", "content": "so"}], add_generation_prompt=False
    )
    assert prefilled.endswith("so")


def test_batches_by_length_answers_in_order(lm: MarsLM, fake: FakeDecoders) -> None:
    prompts = ["w " * n for n in (3, 9, 1, 7, 5, 2)]
    fake.answer = lambda prompt: str(len(prompt))
    answers = lm.generate_until([ask(i, p) for i, p in enumerate(prompts)])
    assert answers == [str(len(p)) for p in prompts]
    lengths = [[len(r.prompt_ids) for r in batch] for batch in fake.batches]
    assert [len(batch) for batch in lengths] == [4, 2]
    flat = [length for batch in lengths for length in batch]
    assert flat == sorted(flat, reverse=True)


def test_batch_size_changes_nothing(source: Source, fake: FakeDecoders) -> None:
    made = []
    for size in (1, 2, 64):
        lm = MarsLM(source, batch_size=size)
        lm.generate_until([ask(i, "w " * (1 + i * 7 % 5)) for i in range(9)])
        made.append([replace(record, seconds=0.0) for record in lm.used])
    assert made[0] == made[1] == made[2]


def test_too_long_a_prompt_counts_as_truncated(lm: MarsLM, fake: FakeDecoders) -> None:
    answers = lm.generate_until([ask(0, "w " * 300), ask(1, "w")])
    assert answers[0] == ""
    assert fake.asked == 1
    assert (lm.used[0].finish, lm.used[0].truncated, lm.used[0].forwards) == ("context", True, 0)


def test_a_prompt_without_room_for_a_block_counts_as_truncated(
    source: Source, fake: FakeDecoders, caplog: pytest.LogCaptureFixture
) -> None:
    fits, not_ = source.context - 8, source.context - 7
    lm = MarsLM(source, decoder="block_diffusion", block_size=8)
    words = "w " * 300
    ids = lm.tok_encode(words)
    lm._prompts = {"fits": (tuple(ids[:fits]), "a"), "not": (tuple(ids[:not_]), "b")}
    lm.generate_until([ask(0, "fits"), ask(7, "not")])
    assert fake.asked == 1
    assert [(r.finish, r.truncated) for r in lm.used][1] == ("context", True)
    assert [record.message for record in caplog.records] == [
        "prompts of more than 248 of the model's 256 positions leave no room for a response: "
        "toy, document 7; they count as empty, truncated answers"
    ]


def test_an_empty_prompt_is_named(lm: MarsLM) -> None:
    with pytest.raises(EvaluationError, match="toy, document 3: the prompt is empty"):
        lm.generate_until([ask(2, "w"), ask(3, "")])


def test_block_diffusion_reads_from_its_cache(source: Source) -> None:
    assert MarsLM(source, decoder="block_diffusion").settings.cache == "cursor"


def test_records_hold_what_was_decoded(lm: MarsLM, fake: FakeDecoders) -> None:
    fake.answer = lambda _: "one two three"
    lm.generate_until([ask(4, "p", task="part")])
    (record,) = lm.used
    assert (record.task, record.doc_id, record.output) == ("part", 4, "one two three")
    assert record.tokens == sum(record.accepted) == len(record.confidence)
    assert record.forwards == len(record.accepted)
    assert record.confidence[0] == 0.98765
    assert record.score is None


@dataclass(frozen=True)
class LastLetters:
    """Reads the end of an answer."""

    identity: str

    def __call__(self, document: Any, answer: str, /) -> dict[str, str]:
        return {"letter": answer[-3:], "document": str(document)}


def test_of_a_closed_benchmark_only_answers_are_kept(
    source: Source, fake: FakeDecoders, tmp_path: Path
) -> None:
    fake.answer = lambda _: "of all things (B)"
    requests = [ask(0, "p"), ask(1, "q")]
    lm = MarsLM(source)

    read = LastLetters("one")
    lm.use(MARS, RecordStore(tmp_path / "r.jsonl"), readers={"toy": read})
    said = lm.generate_until(requests)
    assert said == ['{"letter": "(B)", "document": "{}"}'] * 2
    assert "of all things" not in (tmp_path / "r.jsonl").read_text()
    again = MarsLM(replace(source, load=None))
    again.use(MARS, RecordStore(tmp_path / "r.jsonl"), readers={"toy": read})
    assert again.generate_until(requests) == said
    lm.use(MARS, RecordStore(tmp_path / "r.jsonl"), readers={"toy": LastLetters("another")})
    asked = fake.asked
    lm.generate_until(requests)  # of which the letters may be others
    assert fake.asked == asked + 2
    assert {record.output_hash for record in again.used} == {digest("of all things (B)")}


def test_resume_repeats_nothing(source: Source, fake: FakeDecoders, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    requests = [ask(i, f"w {i}") for i in range(10)]
    fake.die_after = 2
    lm = MarsLM(source, batch_size=3)
    lm.use(MARS, RecordStore(path))
    with pytest.raises(KeyboardInterrupt):
        lm.generate_until(requests)
    assert len(read_records(path)) == 6
    with path.open("ab") as file:
        file.write(b'{"fingerprint": "torn')

    fake.die_after = None
    again = MarsLM(source, batch_size=3)
    again.use(MARS, RecordStore(path))
    resumed = again.generate_until(requests)
    assert fake.asked == 10
    assert len(read_records(path)) == 10

    straight = MarsLM(source, batch_size=3)
    straight.use(MARS, RecordStore())
    assert straight.generate_until(requests) == resumed
    assert fake.asked == 20


def test_repeats_are_kept_apart(lm: MarsLM, fake: FakeDecoders) -> None:
    same = ask(0, "p", temperature=0.5)
    lm.generate_until([same, same])
    assert fake.asked == 2
    assert len({record.fingerprint for record in lm.used}) == 2


def test_every_ingredient_is_in_the_fingerprint(
    source: Source, fake: FakeDecoders, byte_checkpoint: Path, tmp_path: Path
) -> None:
    def key(
        source: Source = source,
        settings: Decoding = MARS,
        versions: dict[str, str] | None = None,
        instance: Instance | None = None,
        multiturn: bool = False,
        **arguments: Any,
    ) -> str:
        lm = MarsLM(source, **arguments)
        versions = versions or {"toy": "1.0"}
        lm.use(settings, RecordStore(), versions=versions, multiturn=multiturn)
        lm.generate_until([instance or ask(0, "p", until=["x"], max_gen_toks=8)])
        return lm.used[0].fingerprint

    from mars.embedded.tokenizer import build_tokenizer

    other = build_tokenizer()
    other.chat_template = "{{ messages }}"
    ends = Path(shutil.copytree(byte_checkpoint, tmp_path / "ends"))
    (ends / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    opened = [open_checkpoint(folder) for folder in (byte_checkpoint, ends)]
    assert len({key(source=checkpoint) for checkpoint in opened}) == 2
    base = key()
    assert key() == base
    assert key(batch_size=1) == base
    changed = [
        key(source=replace(source, checkpoint="other")),
        key(source=replace(source, dtype="bfloat16")),
        key(source=replace(source, tokenizer=other)),
        *(
            key(settings=MARS.model_copy(update=change))
            for change in (
                {"tau": 0.9},
                {"block_size": 8},
                {"rule": "margin"},
                {"cache": "none"},
                {"cache": "block", "cache_block": 8},
                {"temperature": 0.5},
                {"decoder": "jacobi"},
            )
        ),
        key(versions={"toy": "1.1"}),
        key(multiturn=True),
        key(max_new_tokens=10),
        key(instance=ask(0, "q", until=["x"], max_gen_toks=8)),
        key(instance=ask(1, "p", until=["x"], max_gen_toks=8)),
        key(instance=ask(0, "p", until=["y"], max_gen_toks=8)),
        key(instance=ask(0, "p", until=["x"], max_gen_toks=9)),
        key(instance=ask(0, "p", task="part", until=["x"], max_gen_toks=8)),
    ]
    assert len({base, *changed}) == 1 + len(changed)
