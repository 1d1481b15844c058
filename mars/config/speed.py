"""What of a study is measured by the clock: the throughput and training_cost sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mars.config.sections import Section, Tau


class Replay(Section):
    """Replayed acceptance: how many tokens a step accepts is drawn, and forced on every method."""

    tokens_per_forward: float = Field(1.8, ge=1, description="mean accepted with block_size drafts")
    max_new_tokens: int = Field(64, ge=1, description="length of every response")


class Continuous(Section):
    """Continuous against static batching: replayed acceptance, replayed response lengths."""

    slots: int = Field(8, ge=1, description="rows in flight")
    requests: int = Field(64, ge=1)
    shortest: int = Field(16, ge=1, description="new tokens; lengths are log-uniform")
    longest: int = Field(256, ge=1)

    @model_validator(mode="after")
    def _lengths(self) -> Continuous:
        if self.shortest > self.longest:
            raise ValueError(
                f"throughput.continuous.shortest {self.shortest} is above longest {self.longest}: "
                "swap them"
            )
        return self


class Trace(Section):
    """Requests that arrive over time, under fixed τ and under a controller of τ.

    The trace has phases of arrivals; a phase's load is its arrival rate in units of the rate at
    which the engine serves at ``tau_high``, so that a load above 1 fills the queue on any machine.
    """

    slots: int = Field(8, ge=1, description="rows in flight")
    requests: list[Annotated[int, Field(ge=1)]] = Field([16, 48, 16], min_length=1)
    loads: list[Annotated[float, Field(gt=0)]] = [0.5, 2.0, 0.5]
    thresholds: list[Tau] = Field([1.0, 0.95, 0.7], description="the fixed ones")
    tau_high: Tau = Field(0.95, description="of the controller, while nothing waits")
    tau_low: Tau = Field(0.6, description="of the controller, when patience requests wait")
    patience: int = Field(8, ge=1)

    @model_validator(mode="after")
    def _phases(self) -> Trace:
        if len(self.requests) != len(self.loads):
            raise ValueError(
                f"throughput.trace has {len(self.requests)} requests and {len(self.loads)} loads: "
                "give one of each a phase"
            )
        if self.tau_low > self.tau_high:
            raise ValueError(
                f"throughput.trace.tau_low {self.tau_low:g} is above tau_high {self.tau_high:g}: "
                "swap them"
            )
        return self


class Throughput(Section):
    """The wall-clock grid (Table 5), replayed acceptance, continuous batching, arrivals."""

    scale: str
    variant: str = "mars_b4"
    ar_variant: str = "ar_sft"
    benchmark: str = "toy_gsm8k"
    prompts: int = Field(64, ge=1)
    batches: int | None = Field(
        None, ge=1, description="of the prompts, at most so many batches a run; null: all of them"
    )
    block_size: int | None = Field(None, ge=1, description="tokens drafted; null: the variant's")
    thresholds: list[Tau] = Field([0.95], description="of MARS; empty: replayed acceptance only")
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field([1, 4, 8, 16, 32], min_length=1)
    cache_blocks: list[Annotated[int, Field(ge=1)]] = Field([4, 8, 16, 32], min_length=1)
    repeats: int = Field(3, ge=1)
    max_new_tokens: int = Field(64, ge=1)
    threads: int = Field(1, ge=1)
    linears: Literal["stock", "packed", "auto"] = Field(
        "auto", description="CPU weights packed for oneDNN; auto: where that measures faster"
    )
    compile: bool = Field(False, description="torch.compile; on a GPU with CUDA graphs")
    replay: Replay | None = None
    continuous: Continuous | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _once(self) -> Throughput:
        for name in ("thresholds", "batch_sizes", "cache_blocks"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"throughput.{name}: name each once, got {values}")
        return self

    def prompts_at(self, batch_size: int) -> int:
        """How many prompts a run decodes at a batch size: all, or as many as ``batches`` takes."""
        return min(self.prompts, batch_size * (self.batches or self.prompts))


class Drawn(Section):
    """Random conversations of one shape: a step's cost depends on their lengths alone."""

    tokens: int = Field(512, ge=4, description="of a conversation, of one turn")
    response_share: float = Field(0.6, gt=0, lt=1, description="of its tokens")

    @property
    def response(self) -> int:
        """Tokens of the response, end-of-turn included; at least one, and one of the prompt."""
        return min(max(round(self.response_share * self.tokens), 1), self.tokens - 1)


class TrainingCost(Section):
    """What a training step costs: AR SFT, MARS and MARS as released, on the same conversations."""

    scale: str
    ar_variant: str = "ar_sft"
    variants: list[str] = Field(["mars_b4"], description="of MARS, each beside ar_variant")
    released: str | None = Field(
        "mars_b4",
        description="the MARS variant also laid out as in the released code: two full streams, a "
        "dense mask, logits of every column; null: none",
    )
    drawn: Drawn | None = Field(
        None, description="random conversations instead of the data's; null: the data's"
    )
    conversations: int = Field(32, ge=1, description="of a step, all of them in one forward")
    steps: int = Field(2, ge=1, description="of a run, each on other conversations")
    repeats: int = Field(3, ge=1)
    threads: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _once(self) -> TrainingCost:
        if not self.variants or len(set(self.variants)) < len(self.variants):
            raise ValueError("training_cost.variants: name at least one, and each once")
        return self
