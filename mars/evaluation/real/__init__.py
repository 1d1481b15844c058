"""The six real benchmarks: where their data is found, and what is special about their graders.

Prompts, filters and graders are lm-eval's own; nothing of them is repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dataset:
    """A dataset that tasks of lm-eval read.

    Attributes:
        columns: what the tasks read of each document.
        closed: neither its text nor what a model says about it may be written to disk.
    """

    columns: tuple[str, ...]
    closed: bool = False


DATASETS = {
    "google/IFEval": Dataset(("key", "prompt", "instruction_id_list", "kwargs")),
    "SaylorTwift/bbh": Dataset(("input", "target")),
    "TIGER-Lab/MMLU-Pro": Dataset(("question", "options", "answer", "category")),
    "Idavidrein/gpqa": Dataset(
        ("Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))),
        closed=True,
    ),
    "openai/gsm8k": Dataset(("question", "answer")),
    "openai/openai_humaneval": Dataset(("prompt", "test", "entry_point")),
}
"""Hub name, as lm-eval's task files have it → dataset."""

DOCUMENTS = {
    "ifeval": 541,
    "bbh": 6_511,
    "mmlu_pro": 12_032,
    "gpqa_main_cot_zeroshot": 448,
    "gsm8k_cot": 1_319,
    "humaneval_instruct": 164,
}
"""Documents of each benchmark; fewer mean a file that was cut short."""

PACKAGED = ("ifeval", "bbh/cot_fewshot", "mmlu_pro", "gpqa/cot_zeroshot", "gsm8k", "humaneval")
"""The folders of lm-eval's tasks that hold them: reading these alone takes a moment."""
