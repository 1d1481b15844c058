"""lm-eval's own ``hf`` model and ours say the same to the six benchmarks, document by document.

Theirs is scored by ``lm_eval.simple_evaluate`` with lm-eval's tasks as they are, so that what is
done to the tasks here (letters for GPQA's text, fixed documents, fewer tokens) is compared too.
With a tiny random model on made-up documents; and with SmolLM2-135M-Instruct on the benchmarks' own
documents where both are here (`make smollm2` makes the one; MARS_SMOLLM2 names another folder).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_RANDOM_SEED
from lm_eval.models.huggingface import HFLM

from mars.config import BENCHMARK_FOLDERS, Study
from mars.evaluation import lm_eval_model
from mars.evaluation.benchmarks import (
    LoadedBenchmark,
    Outcome,
    _document_scores,
    _numbers,
    load_study,
    requests,
    run_benchmark,
)
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.real import files, gpqa, graders
from mars.evaluation.records import RecordStore, digest
from mars.evaluation.source import Source, open_checkpoint
from mars.evaluation.task_files import task_manager
from mars.models import mask_token_id

from .conftest import FakeDecoders
from .six import (
    BENCH,
    PARTS,
    REPOSITORY,
    SIX,
    byte_tokenizer,
    gold,
    needs_bench,
    study_of,
)

SMOLLM2 = Path(
    os.environ.get("MARS_SMOLLM2", REPOSITORY / "results" / "checkpoints" / "smollm2-135m-instruct")
)
TOKENS = int(os.environ.get("MARS_SMOLLM2_TOKENS", 64))
EACH = {"gsm8k_cot": 24, "humaneval_instruct": 12, "ifeval": 12, "gpqa_main_cot_zeroshot": 8}
"""Documents of each benchmark that SmolLM2 is asked; of a group, one of each sub-task."""


class Theirs(HFLM):
    """lm-eval's model, one document at a time: nothing is padded. Keeps what it said."""

    def __init__(self, folder: Path, tokens: int) -> None:
        super().__init__(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1)
        self.tokens = tokens
        self.said: dict[tuple[str, int], str] = {}
        mask = mask_token_id(self.model, self.tokenizer)
        self.model.generation_config.suppress_tokens = [mask]  # ours never emits it either

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        for request in requests:
            context, wishes = request.args
            request.arguments = (context, wishes | {"max_gen_toks": self.tokens})
        texts = super().generate_until(requests, disable_tqdm=True)
        for request, text in zip(requests, texts, strict=True):
            self.said[request.task_name, request.doc_id] = text
        return texts


@contextmanager
def data_from(root: Path) -> Iterator[None]:
    """Inside, what is asked of the hub comes from files, and shuffles are the same each time.

    lm-eval's GPQA shuffles choices whenever its documents are asked for; the cache of the hub's
    data hides that, which GPQA's does not have here.
    """
    load, map_ = datasets.load_dataset, datasets.Dataset.map

    def local(path: str, name: str | None = None, **kwargs: Any) -> Any:
        if path == gpqa.HUB:
            return gpqa.in_memory(str(name), root.resolve())
        folder = root.resolve() / BENCHMARK_FOLDERS[path]
        return load(str(folder), name, **kwargs, cache_dir=str(files._cache(folder)))

    def seeded(*args: Any, **kwargs: Any) -> Any:
        random.seed(DEFAULT_RANDOM_SEED)
        return map_(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset", local)
        patch.setattr(datasets.Dataset, "map", seeded)
        yield


def plainly(lm: LM, name: str, root: Path, shots: int, limit: int | None) -> dict[str, Any]:
    """What lm-eval reports: its task as its file has it, its filters and graders, none of ours.

    But for HumanEval's metric, which by itself runs a model's programs unprotected: it is the one
    in the sandbox.
    """
    with data_from(root), graders.code_in_the_sandbox(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)  # takes seconds
        return lm_eval.simple_evaluate(
            lm, tasks=[name], task_manager=task_manager([name], []), num_fewshot=shots,
            limit=limit, apply_chat_template=True, fewshot_as_multiturn=False,
            bootstrap_iters=0, log_samples=True, confirm_run_unsafe_code=True,
        )  # fmt: skip


def both(
    folder: Path, study: Study, root: Path, tokens: int, **decoding: Any
) -> tuple[list[str], int]:
    """Where ours and lm-eval's differ, a line each; and how many documents were asked."""
    differing, asked = [], 0
    for name, loaded in load_study(study).items():
        limit = study.evaluation.limit
        lm = MarsLM(open_checkpoint(folder, "float32", "cpu"), 8, max_new_tokens=tokens, **decoding)
        lm.use(lm.settings, RecordStore(), versions=loaded.versions, readers=loaded.readers)
        outcome = run_benchmark(lm, loaded, limit)
        asked += len(lm.used)
        theirs = Theirs(folder, tokens)
        shots = study.evaluation.benchmarks[name].num_fewshot
        expected = plainly(theirs, name, root, shots, limit)
        assert set(theirs.said) == {(record.task, record.doc_id) for record in lm.used}
        for record in lm.used:
            said = theirs.said[record.task, record.doc_id]
            if (record.output_hash or digest(record.output)) != digest(said):
                differing.append(f"{record.task} {record.doc_id}: {said!r}, ours {record.output!r}")
        differing += scored_apart(loaded, outcome, expected)
    return differing, asked


def scored_apart(loaded: LoadedBenchmark, ours: Outcome, theirs: dict[str, Any]) -> list[str]:
    """Documents and metrics that ours and lm-eval's score differently, a line each."""
    scores = _document_scores(theirs, loaded)
    assert set(scores) == set(ours.scores)
    found = [
        f"{key}: scored {scores[key]} but ours {ours.scores[key]}"
        for key in scores
        if scores[key] != ours.scores[key]
    ]
    metrics = {key: value for key, value in ours.metrics.items() if ":" not in key}  # of no part
    if metrics != (reported := _numbers(theirs["results"][loaded.name])):
        found.append(f"{loaded.name}: {reported} but ours {metrics}")
    return found


SLOW = pytest.mark.slow
SAYINGS = ("Who knows.", "The answer is (B).", "(A), no: (C) or 144", "Waves at the harbour", "")


@pytest.mark.parametrize("where", ["made", pytest.param("bench", marks=[needs_bench, SLOW])])
@pytest.mark.parametrize("name", [PARTS[name][0] if name in PARTS else name for name in SIX])
def test_the_same_text_is_scored_the_same(
    name: str, where: str, made_root: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    """Right answers and wrong ones, each to every document (of the benchmarks' own, to three)."""
    root, limit = (made_root, None) if where == "made" else (BENCH, 3)
    study = study_of(root, name)
    [loaded] = load_study(study).values()
    source = Source(byte_tokenizer(), "c0ffee", context=1 << 20, dtype="float32", load=lambda: None)
    fake = FakeDecoders(source.tokenizer)
    monkeypatch.setattr(lm_eval_model, "make_decoder", fake.make)
    tasks, ours = loaded.tasks, MarsLM(source)
    right = {i.args[0]: i for i in requests(ours, loaded, limit)}
    sayings: list[Callable[[str], str]] = [lambda _, text=text: text for text in SAYINGS]
    if name != "ifeval":  # which has no gold text
        sayings.append(lambda prompt: gold(tasks[right[prompt].task_name], right[prompt].doc))
    earned = set()
    for saying in sayings:
        fake.answer = saying
        ours.use(ours.settings, RecordStore(), readers=loaded.readers)
        outcome = run_benchmark(ours, loaded, limit)
        shots = study.evaluation.benchmarks[name].num_fewshot
        theirs = plainly(MarsLM(source), name, root, shots, limit)
        assert not scored_apart(loaded, outcome, theirs)
        earned |= set(outcome.scores.values())
    assert earned == {0.0, 1.0} or (name, where) == ("ifeval", "bench")


def test_a_random_model_says_the_same(
    made_root: Path, byte_checkpoint: Path, no_network: list[Any]
) -> None:
    names = [PARTS[name][0] if name in PARTS else name for name in SIX]
    study = study_of(made_root, *names, limit=2)
    differing, asked = both(byte_checkpoint, study, made_root, 24, decoder="ar")
    assert not differing
    assert asked == 2 + 2 + 1 + 2 + 2 + 2


@pytest.mark.slow
@needs_bench
@pytest.mark.skipif(
    not (SMOLLM2 / "model.safetensors").is_file(), reason="no SmolLM2 here: run `make smollm2`"
)
@pytest.mark.parametrize("name", SIX)
def test_smollm2_says_the_same(name: str, no_network: list[Any]) -> None:
    study = study_of(BENCH, name, limit=EACH.get(name, 1))
    how = {"decoder": "mars", "block_size": 4, "tau": 1.0}
    differing, asked = both(SMOLLM2, study, BENCH, TOKENS, **how)
    assert not differing
    assert asked == EACH.get(name, {"bbh": 27, "mmlu_pro": 14}.get(name))
