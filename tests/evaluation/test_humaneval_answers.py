"""What counts as an answer to ``humaneval_instruct``, whose prompt has begun the assistant's turn.

The prompt ends within a code block, after the function's head and docstring, so an answer is read
as the rest of that block: up to a fence, or to a line that starts something new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mars.evaluation import lm_eval_model
from mars.evaluation.benchmarks import LoadedBenchmark, load_study, requests, run_benchmark
from mars.evaluation.lm_eval_model import MarsLM
from mars.evaluation.records import RecordStore
from mars.evaluation.sandbox import run_tests
from mars.evaluation.source import Source

from .conftest import FakeDecoders
from .six import HUMANEVAL, byte_tokenizer, study_of

BODY = "    return 2 * n\n"


@pytest.fixture(scope="module")
def loaded(made_root: Path) -> LoadedBenchmark:
    return load_study(study_of(made_root, "humaneval_instruct", limit=1))["humaneval_instruct"]


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> MarsLM:
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(lm_eval_model, "make_decoder", FakeDecoders(tokenizer).make)
    source = Source(tokenizer, "c0ffee", context=1 << 16, dtype="float32", load=lambda: None)
    return MarsLM(source, decoder="ar")


def test_the_prompt_has_begun_the_answer(loaded: LoadedBenchmark, lm: MarsLM) -> None:
    [instance] = requests(lm, loaded, 1)
    said = instance.args[0].split("<|im_start|>assistant\n")[1]
    assert said.endswith("```python\n" + HUMANEVAL[0]["prompt"] + "\n")
    assert "<|im_end|>" not in said


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (BODY, True),
        (f"{BODY}```\nThis doubles n.\n```python\nassert False\n```", True),
        (f"{BODY}\nclass Other:\n    raise ValueError", True),
        (f"{BODY}\ndef other():\n    return (", True),
        (f"{BODY}# Example:\nthis is no code", True),
        (f"{BODY}\nif __name__ == '__main__':\n    raise ValueError", True),
        (f"{BODY}\nprint(double(2), 'is no code", True),
        ("    import math\n    return int(math.ldexp(n, 1))\n", True),
        ("    return int(math.ldexp(n, 1))\n\nimport math\n", True),  # before it is called
        ("def double(n):\n    return 2 * n\n", True),  # the answer's own first line stops nothing
        (f"{BODY}\n\nThat is all.", False),  # prose without a fence is read as code
        ("```python\ndef double(n):\n    return 2 * n\n```", False),  # the open block ends at once
        ("Sure! Here it is:\n\ndef double(n):\n    return 2 * n\n", False),
        ("\ndef double(n):\n    return 2 * n\n", False),  # cut before it begins
        ("return 2 * n\n", False),
        ("I would rather not.", False),
        ("", False),
        ("    return n + 2\n", False),
        ("    raise SystemExit(0)\n", False),
        ("    pass\n\nimport os\nos._exit(0)\n", False),
    ],
)
def test_verdicts(
    answer: str, passes: bool, loaded: LoadedBenchmark, lm: MarsLM,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    decoders: Any = FakeDecoders(lm.tokenizer, answer=lambda _: answer)
    monkeypatch.setattr(lm_eval_model, "make_decoder", decoders.make)
    lm.use(lm.settings, RecordStore())
    outcome = run_benchmark(lm, loaded, 1)
    assert outcome.scores == {("humaneval_instruct", 0): float(passes)}


def test_the_tests_call_the_problems_own_helpers(loaded: LoadedBenchmark) -> None:
    problem = {
        "prompt": "def line(x):\n    return 2 * x - 6\n\n\n"
                  "def root():\n    \"\"\"Where line is zero.\"\"\"\n",
        "test": "def check(candidate):\n    assert line(candidate()) == 0\n",
        "entry_point": "root",
    }  # fmt: skip
    tests = loaded.tasks["humaneval_instruct"].doc_to_target(problem)
    assert run_tests(problem["prompt"] + "    return 3\n", tests).passed
    forged = "    global line\n    line = lambda x: 0\n    return 5\n"
    assert not run_tests(problem["prompt"] + forged, tests).passed
