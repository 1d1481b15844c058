"""lm-eval's own ``hf`` model and ours say the same to the six benchmarks, document by document.

With a tiny random model on made-up documents; and with SmolLM2-135M-Instruct on the benchmarks' own
documents where both are here (`make smollm2` makes the one; MARS_SMOLLM2 names another folder).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM

from mars.config import Study
from mars.evaluation.benchmarks import LoadedBenchmark, Outcome, load_study, run_benchmark
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import RecordStore, digest
from mars.evaluation.source import open_checkpoint
from mars.models import mask_token_id

from .six import BENCH, PARTS, REPOSITORY, SIX, needs_bench, study_of

SMOLLM2 = Path(
    os.environ.get("MARS_SMOLLM2", REPOSITORY / "results" / "checkpoints" / "smollm2-135m-instruct")
)
TOKENS = int(os.environ.get("MARS_SMOLLM2_TOKENS", 64))
EACH = {"gsm8k_cot": 24, "humaneval_instruct": 12, "ifeval": 12, "gpqa_main_cot_zeroshot": 8}
"""Documents of each benchmark that SmolLM2 is asked; of a group, one of each sub-task."""


class Theirs(HFLM):
    """lm-eval's model, one document at a time: nothing is padded. Keeps what it said."""

    def __init__(self, folder: Path, loaded: LoadedBenchmark, tokens: int) -> None:
        super().__init__(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1)
        self.loaded, self.tokens = loaded, tokens
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
        readers = self.loaded.readers
        return [
            json.dumps(readers[r.task_name](r.doc, text)) if r.task_name in readers else text
            for r, text in zip(requests, texts, strict=True)
        ]


def both(folder: Path, study: Study, tokens: int, **decoding: Any) -> tuple[list[str], int]:
    """Where ours and lm-eval's differ, a line each; and how many documents were asked."""
    differing, asked = [], 0
    for loaded in load_study(study).values():
        limit = study.evaluation.limit
        theirs = Theirs(folder, loaded, tokens)
        expected: Outcome = run_benchmark(theirs, loaded, limit)
        lm = MarsLM(open_checkpoint(folder, "float32", "cpu"), 8, max_new_tokens=tokens, **decoding)
        lm.use(lm.settings, RecordStore(), versions=loaded.versions, readers=loaded.readers)
        outcome = run_benchmark(lm, loaded, limit)
        asked += len(lm.used)
        for record in lm.used:
            said = theirs.said[record.task, record.doc_id]
            name = f"{record.task}, document {record.doc_id}"
            if (record.output_hash or digest(record.output)) != digest(said):
                differing.append(f"{name}: {said!r} but ours {record.output!r}")
            if (
                outcome.scores[record.task, record.doc_id]
                != expected.scores[record.task, record.doc_id]
            ):
                differing.append(f"{name}: other scores")
        assert set(theirs.said) == {(record.task, record.doc_id) for record in lm.used}
        if outcome.metrics != expected.metrics:
            differing.append(f"{loaded.name}: {expected.metrics} but ours {outcome.metrics}")
    return differing, asked


def test_a_random_model_says_the_same(made_root: Path, byte_checkpoint: Path) -> None:
    names = [PARTS[name][0] if name in PARTS else name for name in SIX]
    study = study_of(made_root, *names, limit=2)
    differing, asked = both(byte_checkpoint, study, 24, decoder="ar")
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
    differing, asked = both(SMOLLM2, study, TOKENS, decoder="mars", block_size=4, tau=1.0)
    assert not differing
    assert asked == EACH.get(name, {"bbh": 27, "mmlu_pro": 14}.get(name))
