"""The toy benchmarks as lm-eval sees them: documents, and the scores its metrics do not have."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

from datasets import Dataset

from mars.embedded.corpus import held_out_items
from mars.embedded.humaneval import hidden_tests
from mars.embedded.ifeval import verify
from mars.embedded.problem import TEST_ITEMS, TEST_SEED

Document = dict[str, Any]


def load(
    benchmark: str, items: int = TEST_ITEMS, seed: int = TEST_SEED, **_unused: Any
) -> dict[str, Dataset]:
    """The test documents of a benchmark; lm-eval passes the task's metadata (and its `version`)."""
    rows = [
        {
            "prompt": item.prompt,
            "answer": item.answer,
            "reference": item.response,
            "key": item.key,
            "extra": json.dumps(item.extra),
        }
        for item in held_out_items(benchmark, items, seed)
    ]
    return {"test": Dataset.from_list(rows)}


def score_constraints(doc: Document, results: list[str]) -> dict[str, Any]:
    """IFEval's four scores of one response."""
    kept = verify(results[0], json.loads(doc["extra"])["instructions"])
    return {
        "prompt_level_strict_acc": all(kept["strict"]),
        "inst_level_strict_acc": kept["strict"],
        "prompt_level_loose_acc": all(kept["loose"]),
        "inst_level_loose_acc": kept["loose"],
    }


def mean_of_instructions(items: list[list[bool]]) -> float:
    """The share of all instructions that were kept."""
    flat = list(chain.from_iterable(items))
    return sum(flat) / len(flat)


def score_function(doc: Document, results: list[str]) -> dict[str, float]:
    """1 where the function passes its hidden tests in the sandbox."""
    from mars.evaluation.sandbox import run_tests

    tests = hidden_tests(doc["answer"], json.loads(doc["extra"]))
    verdict = run_tests(results[0].strip(), tests, timeout_s=2.0, memory_mb=256)
    return {"pass@1": float(verdict.passed)}
