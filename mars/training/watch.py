"""Beside the training loop: the progress bar, the clock, the check of each step, SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from mars.training.progress import peak_memory_mb

if TYPE_CHECKING:
    from mars.training.trainer import SumTrainer


class Watch(TrainerCallback):
    """Progress bar with time left, tokens/s and both losses; clock; finite steps; SIGTERM."""

    def __init__(self, trainer: SumTrainer) -> None:
        self.trainer = trainer
        self.bar: Any = None
        self.since = 0.0
        self.before = (0, 0.0)
        """Clean tokens and seconds of earlier starts of this run."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        progress = self.trainer.progress
        self.since = time.perf_counter()
        self.before = (progress.counts.clean_tokens, progress.seconds)
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc=self.trainer.label,
            unit="step", mininterval=1.0 if sys.stderr.isatty() else 30.0,
            disable=not state.is_world_process_zero,
        )  # fmt: skip

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.trainer.end_of_step(state.global_step)

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        now, progress = time.perf_counter(), self.trainer.progress
        progress.seconds += now - self.since
        self.since = now
        progress.peak_memory_mb = max(progress.peak_memory_mb, peak_memory_mb())
        self.bar.update(1)
        if progress.steps:
            self.bar.set_postfix(
                loss=f"{progress.loss / progress.steps:.3f}",
                ar=f"{progress.loss_ar / progress.steps:.3f}",
                mask=f"{progress.loss_mask / progress.steps:.3f}",
                tokens=f"{self.tokens_per_second():.0f}/s",
                refresh=False,
            )
        if state.global_step >= state.max_steps:
            control.should_log = True
        if self.trainer.stopping():
            control.should_save = control.should_training_stop = True
        return control

    def tokens_per_second(self) -> float:
        """Clean tokens a second since this start, over all processes."""
        progress = self.trainer.progress
        tokens, seconds = self.before
        return (progress.counts.clean_tokens - tokens) / max(progress.seconds - seconds, 1e-9)

    def close(self) -> None:
        """Finish the progress bar, however the run ended."""
        if self.bar is not None:
            self.bar.close()


class on_sigterm:  # noqa: N801
    """Call a function on SIGTERM instead of dying (in the main thread; elsewhere do nothing)."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.before: Any = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.call()

    def __enter__(self) -> None:
        try:
            self.before = signal.signal(signal.SIGTERM, self._handle)
        except ValueError:
            self.before = None

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
