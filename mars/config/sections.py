"""The sections of a study, and what they are made of. What each setting means stands with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Tau = Annotated[float, Field(gt=0.0, le=1.0)]
Rule = Literal["probability", "entropy", "margin"]
CacheName = Literal["none", "block", "cursor"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
DecoderName = Name
"""One of ``DECODERS``, or a plug-in's (``mars.plugins`` says which there are)."""

DECODERS = ("ar", "mars", "block_diffusion", "jacobi")
"""The decoding methods that are built in."""

UNTHRESHOLDED = ("ar", "block_diffusion", "jacobi")
"""Those that a study reads at τ = 1 only."""

ALIGNMENTS = {
    "ar_sft": ("decoder",),
    "mars": ("decoder", "stream"),
    "block_diffusion": ("stream", "own"),
}
"""Which alignments an objective knows (docs/method.md)."""


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Section):
    """A base checkpoint and the scale of the paper that it stands for."""

    base: str = Field(
        description="embedded:<name>, a checkpoint folder, or a hub model, owner/name"
    )
    revision: str | None = Field(None, description="of a hub model: commit, branch or tag")
    paper: str | None = Field(None, description="the paper's scale it is shown beside, e.g. 0.5B")
    released: dict[Name, str] = Field(
        default_factory=dict,
        description="variant → a checkpoint its authors released (hub model or folder), read "
        "instead of trained where checkpoints is 'released'",
    )


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATA_FILE = re.compile(r"\.(jsonl?|parquet|arrow)$")


class Data(Section):
    """Where training conversations come from."""

    source: str = Field(
        "embedded",
        description="'embedded'; a JSONL file; a folder or Parquet file of the datasets library; "
        "or a hub dataset, owner/name or hub:owner/name",
    )
    config: str | None = Field(None, description="of a dataset that has several")
    split: str | None = Field(None, description="the dataset's split; null: train")
    revision: str | None = Field(None, description="the hub dataset's commit, branch or tag")
    stage1_examples: int = Field(12_000, ge=1, description="distinct conversations of stage 1")
    stage2_examples: int = Field(12_000, ge=1, description="distinct conversations of stage 2")
    max_length: int = Field(128, ge=8, description="tokens; longer conversations are cut")
    on_bad_rows: Literal["drop", "error"] = Field(
        "drop", description="rows that cannot be trained on, or repeat another"
    )

    @property
    def hub_name(self) -> str | None:
        """The hub dataset that source names; None: it names something else."""
        if self.source.startswith("hub:"):
            return self.source.removeprefix("hub:")
        named = _HUB_NAME.fullmatch(self.source) and not _DATA_FILE.search(self.source)
        return self.source if named and not Path(self.source).exists() else None

    @property
    def path(self) -> Path | None:
        """The file or folder that source names; None: the toy world or a hub dataset."""
        return None if self.source == "embedded" or self.hub_name else Path(self.source)

    @property
    def files(self) -> list[str]:
        """The files below ``path``, for a workflow to depend on."""
        found = [] if self.path is None else [self.path, *sorted(self.path.rglob("*"))]
        return [str(file) for file in found if file.is_file()]

    @model_validator(mode="after")
    def _toy_world_has_none(self) -> Data:
        for name in ("config", "split", "revision"):
            if self.source == "embedded" and getattr(self, name) is not None:
                raise ValueError(f"data.{name}: the embedded source has none; leave it out")
        return self


class Training(Section):
    """Optimisation, shared by every variant of a study."""

    learning_rate: float = Field(1e-3, gt=0)
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    warmup_ratio: float = Field(0.03, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    batch_size: int = Field(64, ge=1, description="conversations per optimizer step")
    row_length: int = Field(
        512, ge=8, description="tokens and masks of a row of packed conversations"
    )
    micro_batch_tokens: int = Field(
        4096, ge=8, description="tokens and masks of a forward, padding included"
    )
    epochs: int = Field(1, ge=1)
    save_steps: int = Field(50, ge=1, description="optimizer steps between resumable checkpoints")
    logging_steps: int = Field(5, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        "float32", description="auto: bfloat16 where the GPU computes in it, else float32"
    )
    activation_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, more time"
    )
    threads: int = Field(1, ge=1, description="CPU threads of one training process")
    processes: int = Field(1, ge=1, description="more than one are launched by accelerate")
    accelerate: str | None = Field(
        None, description="accelerate configuration, e.g. config/accelerate/eight_gpus_fsdp.yaml"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_micro_batch_size(cls, given: Any) -> Any:
        if isinstance(given, dict) and "micro_batch_size" in given:
            raise ValueError(
                "micro_batch_size (conversations) is now micro_batch_tokens: set the tokens and "
                "masks of a forward, or leave it out"
            )
        return given


ROUNDING = frozenset(
    {
        "row_length", "micro_batch_tokens", "activation_checkpointing",  # how a step is computed
        "threads", "processes", "accelerate",  # where
        "save_steps", "logging_steps",  # and what is told of it
    }
)  # fmt: skip
"""Training settings that change what is learned by rounding at most.

They may change between a run and its continuation, and make no other model of a finished one."""


class Variant(Section):
    """One model: an objective applied to a parent on the examples of some stages.

    Or a checkpoint from elsewhere, evaluated as it is.
    """

    objective: str | None = Field(None, description="none: the base checkpoint as given")
    parent: str | None = Field(None, description="the variant whose checkpoint it starts from")
    stages: list[Literal[1, 2]] = Field(default_factory=list)
    scales: list[str] | None = Field(None, description="default: every scale of the study")
    block_size: int = Field(1, ge=1)
    ar_weight: float = Field(1.0, ge=0, description="weight of the SFT loss L_AR")
    alignment: Literal["decoder", "stream", "own"] = "decoder"
    learning_rate: float | None = Field(None, gt=0, description="null: training.learning_rate")
    checkpoint: str | None = Field(
        None, description="a folder or hub model that is evaluated as it is, instead of training"
    )
    decoder: DecoderName = Field(
        "ar",
        description="the method that reads it in the quality tables; default: the objective's "
        "own, of a plug-in's objective or a checkpoint mars where block_size is above 1, else ar",
    )
    thresholds: list[Tau] | None = Field(
        None, min_length=1, description="on every benchmark, instead of the evaluation section's"
    )

    @model_validator(mode="before")
    @classmethod
    def _reader(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "decoder" in given:
            return given
        objective, size = given.get("objective"), given.get("block_size", 1)
        own = {"ar_sft": "ar", "mars": "mars", "block_diffusion": "block_diffusion"}
        drafts = isinstance(size, int) and size > 1
        return given | {"decoder": own.get(str(objective), "mars" if drafts else "ar")}


class Benchmark(Section):
    """An lm-eval task and how its score is read."""

    column: str = Field(description="the paper's column it stands under, e.g. GSM8K")
    metric: str = Field(description="lm-eval metric key, e.g. exact_match,strict-match")
    num_fewshot: int = Field(0, ge=0)


class Decoding(Section):
    """Everything that shapes a generation besides the checkpoint and the prompt."""

    decoder: DecoderName
    block_size: int = Field(1, ge=1, description="tokens drafted a step (jacobi: the window)")
    tau: Tau = 1.0
    rule: Rule = "probability"
    cache: CacheName = "cursor"
    cache_block: int | None = Field(None, ge=1, description="B_cache, with cache: block")
    temperature: float = Field(0.0, ge=0)
    alignment: Literal["stream", "own"] | None = Field(None, description="of block diffusion only")
    draft: Literal["B", "auto"] = Field("B", description="auto: no longer than pays (mars)")

    @property
    def id(self) -> str:
        """A file name that differs wherever a setting differs."""
        parts = [
            self.decoder,
            f"B{self.block_size}",
            f"tau{_exact(self.tau)}",
            self.rule,
            self.cache,
        ]
        if self.cache_block is not None:
            parts.append(f"C{self.cache_block}")
        if self.temperature:
            parts.append(f"T{_exact(self.temperature)}")
        if self.alignment == "own":
            parts.append("own")
        if self.draft == "auto":
            parts.append("auto")
        return "_".join(parts)


def _exact(value: float) -> str:
    """A number as short as it can be without meaning another."""
    return repr(value).removesuffix(".0")


class Acceptance(Section):
    """The comparison of acceptance rules (the paper's appendix)."""

    rules: list[Rule] = ["probability", "entropy", "margin"]
    variant: str = "mars_b4"
    benchmark: str = "toy_gsm8k"
    thresholds: list[Tau] = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5]


class Jacobi(Section):
    """Jacobi decoding of the AR model: tokens per forward beside the paper's 1.07."""

    variant: str = "ar_sft"
    window: int = Field(4, ge=1)


class Evaluation(Section):
    """Benchmarks and the thresholds they are run at."""

    benchmarks: dict[Name, Benchmark]
    limit: Annotated[int, Field(ge=1)] | dict[Name, Annotated[int, Field(ge=1)]] | None = Field(
        None,
        description="documents a (sub-)task; by benchmark: those not named run whole; null: all",
    )
    batch_size: int = Field(64, ge=1, description="rows decoded together")
    max_new_tokens: Annotated[int, Field(ge=1)] | Literal["task"] = Field(
        "task", description="task: the task's own budget"
    )
    fewshot_as_multiturn: bool = Field(
        False, description="shots as turns of their own; false, as in the paper: in one user turn"
    )
    model_written_code: Literal["sandbox", "unprotected"] = Field(
        "sandbox",
        description="sandbox: refuse to run a model's code where nothing isolates it; unprotected: "
        "run it there all the same",
    )
    thresholds: list[Tau] = Field([1.0, 0.95], description="for MARS variants, every benchmark")
    sweep: Literal["none", "panels", "full"] = Field(
        "panels", description="where sweep_thresholds run: the frontier's panels, or everywhere"
    )
    sweep_thresholds: list[Tau] = [0.9, 0.8, 0.7, 0.6, 0.5]
    panels: list[str] = Field(description="the benchmarks of the frontier figure")
    acceptance: Acceptance | None = None
    jacobi: Jacobi | None = None
    processes: int = Field(
        1, ge=1, description="of one variant's evaluation, each on GPUs of its own"
    )
    gpus_per_process: int = Field(
        1, ge=1, description="more than one where a model's weights do not fit one GPU"
    )
    threads: int = Field(1, ge=1, description="CPU threads of one process")

    def limit_of(self, benchmark: str) -> int | None:
        """Documents that each (sub-)task of a benchmark is cut to; None: all."""
        return self.limit.get(benchmark) if isinstance(self.limit, dict) else self.limit
