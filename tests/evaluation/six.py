"""The six real benchmarks for tests: their settings, gold answers, and a few made-up documents.

The benchmarks' own files lie outside the repository; tests that read them are skipped where they
are absent. The made-up documents have the same columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mars.config import Benchmark, Study, parse_study
from mars.evaluation.benchmarks import load_study
from mars.evaluation.source import EvaluationError

REPOSITORY = Path(__file__).parents[2]
BENCH = REPOSITORY.parent / "shared" / "bench"
needs_bench = pytest.mark.skipif(
    not BENCH.is_dir(), reason=f"the benchmarks' files are not in {BENCH}"
)

SIX = {
    "ifeval": ("IFEval", "prompt_level_strict_acc,none", 0),
    "bbh": ("BBH", "exact_match,get-answer", 3),
    "mmlu_pro": ("MMLU-Pro", "exact_match,custom-extract", 0),
    "gpqa_main_cot_zeroshot": ("GPQA", "exact_match,flexible-extract", 0),
    "gsm8k_cot": ("GSM8K", "exact_match,flexible-extract", 0),
    "humaneval_instruct": ("HumanEval", "pass@1,create_test", 0),
}
SETTINGS = {
    name: Benchmark(column=column, metric=metric, num_fewshot=shots)
    for name, (column, metric, shots) in SIX.items()
}
PARTS = {  # one task of each group
    "bbh": ("bbh_cot_fewshot_navigate", Benchmark(column="BBH", metric="exact_match,get-answer",
                                                  num_fewshot=3)),
    "mmlu_pro": ("mmlu_pro_law", Benchmark(column="MMLU-Pro",
                                           metric="exact_match,custom-extract")),
}  # fmt: skip


def study_of(data_root: Path | None, *names: str, **evaluation: Any) -> Study:
    """A study of some of the six (a group's name may be one of its tasks')."""
    raw = yaml.safe_load((REPOSITORY / "config" / "embedded.yaml").read_text())
    settings = SETTINGS | dict(PARTS.values())
    raw |= {
        "study": "test",
        "data_root": None if data_root is None else str(data_root),
        "throughput": None,
        "training_cost": None,
    }
    raw["evaluation"] |= {
        "benchmarks": {name: settings[name].model_dump() for name in names},
        "panels": [],
        "sweep": "none",
        "thresholds": [1.0],
        "acceptance": None,
        "jacobi": None,
        "max_new_tokens": 4096,
    } | evaluation
    return parse_study(raw)


TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% if not (loop.last and continue_final_message) %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    """A token a byte: any text comes back as it was."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    names = [*special, *bytes_to_unicode().values()]
    inner = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def gold(task: Any, document: dict[str, Any]) -> str:
    """The answer that a benchmark's grader wants, in the form that its filters read."""
    name = task.task_name
    if name.startswith("humaneval"):
        return document["canonical_solution"]
    if name.startswith("mmlu_pro"):
        return f"Look. So the answer is ({document['answer']})."
    if name.startswith("bbh"):
        return f"So the answer is {document['target']}."
    return f"Look. The answer is {task.doc_to_target(document)}."


# ------------------------------------------------------------------------- made-up documents


PUNKT = {
    "abbrev_types.txt": b"dr\ne.g\n",
    "collocations.tab": b"##number##\tstreet\n",
    "ortho_context.tab": b"the\t46\n",
    "sent_starters.txt": b"however\n",
}
"""The files of NLTK's English tables, a line or two of each."""


def make_root(root: Path) -> Path:
    """A data_root with a few documents of each benchmark."""
    gsm8k = [
        {"question": f"A crate holds {n} pots. How many do {n} hold?",
         "answer": f"{n} times {n} is {n * n}.\n#### {n * n}"}
        for n in (3, 12, 40)
    ]  # fmt: skip
    _dataset(root / "gsm8k", {"main": {"test": gsm8k, "train": gsm8k[:1]}})
    _dataset(root / "humaneval", {"default": {"test": HUMANEVAL}})
    _dataset(root / "ifeval", {"default": {"train": IFEVAL}})
    tasks = Path(lm_eval.tasks.__path__[0])
    names = sorted(
        yaml.safe_load(path.read_text())["dataset_name"]
        for path in (tasks / "bbh" / "cot_fewshot").glob("[!_]*.yaml")
    )
    boxes = [{"input": f"Is box {n} shut?", "target": "Yes" if n % 2 else "No"} for n in (1, 2)]
    _dataset(root / "bbh", {name: {"test": boxes} for name in names})
    subjects = sorted(
        path.stem.removeprefix("mmlu_pro_").replace("_", " ")
        for path in (tasks / "mmlu_pro").glob("mmlu_pro_*.yaml")
    )
    questions = [
        {"question_id": number, "question": f"Which of these belongs to {subject}?",
         "options": ["none", "this one", "all"], "answer": "B", "answer_index": 1,
         "cot_content": "A: Let's think step by step. The answer is (B).", "category": subject,
         "src": "made"}
        for number, subject in enumerate(subjects)
    ]  # fmt: skip
    _dataset(root / "mmlu_pro", {"default": {"test": questions, "validation": questions}})
    write_gpqa(root / "gpqa" / "dataset.zip", GPQA)
    tables = root / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    tables.mkdir(parents=True)
    for name, content in PUNKT.items():
        (tables / name).write_bytes(content)
    return root


def _dataset(folder: Path, configs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    listed = []
    for config, splits in configs.items():
        files = []
        for split, rows in splits.items():
            path = folder / config / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            files.append({"split": split, "path": f"{config}/{split}.jsonl"})
        listed.append({"config_name": config, "data_files": files})
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': listed})}---\n")


def write_gpqa(path: Path, rows: list[dict[str, str]], config: str = "gpqa_main") -> None:
    """As the authors' zip, but open: Python writes no encrypted one, and reads both alike."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"dataset/{config}.csv", text.getvalue())


def gpqa_row(topic: str, right: str, wrong: list[str]) -> dict[str, str]:
    question = (
        f"Of the many things that one could ask about {topic}, which is the one that a keeper of "
        f"{topic} would call settled, when two of the three {topic} before it were in doubt?"
    )
    answers = {f"Incorrect Answer {n}": text for n, text in enumerate(wrong, 1)}
    return {"Question": question, "Correct Answer": right, **answers, "Explanation": "made up"}


GPQA = [
    gpqa_row("lanterns", "the first, because it burns", ["the last", "none", "all of them"]),
    gpqa_row("barometers", "B", ["A", "C", "D"]),
    gpqa_row("weavers", "12 m", ["1 m", "2 m", "..."]),
    gpqa_row("ferries", "(A)", ["(B)", "i", "the answer"]),
]

HUMANEVAL = [
    {
        "task_id": "Made/0",
        "prompt": "def double(n: int) -> int:\n    \"\"\"Twice n.\n    >>> double(2)\n    4\n"
                  "    \"\"\"\n",
        "canonical_solution": "    return 2 * n\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n"
                "    assert candidate(-3) == -6\n",
        "entry_point": "double",
    },
    {
        "task_id": "Made/1",
        "prompt": "from typing import List\n\n\ndef longest(words: List[str]) -> str:\n"
                  "    \"\"\"The first of the longest words.\"\"\"\n",
        "canonical_solution": "    return max(words, key=len)\n",
        "test": "def check(candidate):\n    assert candidate(['a', 'bb', 'cc']) == 'bb'\n",
        "entry_point": "longest",
    },
]  # fmt: skip

IFEVAL = [
    {
        "key": 1,
        "prompt": "Tell of the sea without a comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    {
        "key": 2,
        "prompt": "Write at least 5 words, and name the harbour.",
        "instruction_id_list": ["length_constraints:number_words", "keywords:existence"],
        "kwargs": [
            {"relation": "at least", "num_words": 5, "keywords": None},
            {"relation": None, "num_words": None, "keywords": ["harbour"]},
        ],
    },
]


def cut_gzip(path: Path) -> None:
    """A gzip file that ends too soon."""
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in IFEVAL * 400).encode())
    path.write_bytes(whole[: len(whole) // 2])


def said(study: Any) -> str:
    """The line that loading a study's benchmarks ends with."""
    with pytest.raises(EvaluationError) as caught:
        load_study(study)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    return line
