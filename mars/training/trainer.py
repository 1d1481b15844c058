"""A small subclass of ``transformers.Trainer`` for losses that are sums over response tokens."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, SequentialSampler
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from mars.config import Training
from mars.data import Encoded
from mars.models import writing
from mars.training.objectives import Batch, Objective
from mars.training.objectives.base import Key
from mars.training.progress import Curve, Progress, mark_whole, newest_whole, peak_memory_mb


class TrainingError(RuntimeError):
    """Training that cannot go on; the message is one line for the user."""


class Ordered(Dataset):  # type: ignore[type-arg]
    """The run's examples in the order they are seen, every epoch one after the other.

    Each optimizer step has its own ``window`` of examples, drawn without regard to length;
    inside it they are sorted by length, so that micro-batches pad little. The loss of a step
    does not depend on how its window is split.
    """

    def __init__(self, fetch: Callable[[int], tuple[Encoded, Key]], total: int, window: int):
        self.fetch, self.total, self.window = fetch, total, window
        self._held: tuple[int, list[tuple[Encoded, Key]]] = (-1, [])

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int) -> tuple[Encoded, Key]:
        number, place = divmod(index, self.window)
        if self._held[0] != number:
            start = number * self.window
            members = [self.fetch(i) for i in range(start, min(start + self.window, self.total))]
            members.sort(key=lambda member: len(member[0]))
            self._held = (number, members)
        return self._held[1][place]


def shuffled(
    examples: Sequence[Encoded], epochs: int, seed: int
) -> Callable[[int], tuple[Encoded, Key]]:
    """A seeded permutation of the examples for every epoch, as ``Ordered`` takes it.

    It depends on the seed, the epoch and the number of examples only, so every variant trained
    on the same examples sees them in the same order.
    """
    orders = [
        np.random.default_rng([seed, epoch]).permutation(len(examples)) for epoch in range(epochs)
    ]

    def fetch(index: int) -> tuple[Encoded, Key]:
        epoch, place = divmod(index, len(examples))
        example = int(orders[epoch][place])
        return examples[example], (epoch, example)

    return fetch


class SumTrainer(Trainer):
    """Losses are sums divided by the response tokens of the whole step, on every device."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, objective: Objective, data: Ordered,
        config: Training, out: Path, seed: int, epoch_examples: int, label: str,
    ) -> None:  # fmt: skip
        steps = math.ceil(len(data) / config.batch_size)
        super().__init__(
            model=model,
            args=_arguments(config, out / "trainer", seed, steps),
            train_dataset=data,
            processing_class=tokenizer,
            data_collator=lambda rows: {"batch": objective.collate(*zip(*rows, strict=True))},
        )
        self.objective: Objective = objective
        self.out: Path = out
        self.label: str = label
        self.epoch_examples: int = epoch_examples
        self.folder: Path = out / "trainer"
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        self.progress = Progress()
        self.curve: Curve | None = None
        self.pending: list[tuple[Tensor, Batch]] = []
        self.shape: Any = model.config
        self.parameters: int = sum(p.numel() for p in model.parameters())
        self.terminated = False
        for unwanted in (PrinterCallback, ProgressCallback):
            self.remove_callback(unwanted)
        self.watch = _Watch(self)
        self.add_callback(self.watch)

    # --- the order of examples

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    # --- the loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and its response tokens over all devices."""
        taken = list(islice(epoch_iterator, num_batches))
        tokens = torch.tensor(sum(m["batch"].counts.response_tokens for m in taken), device=device)
        if self.args.world_size > 1:
            tokens = self.accelerator.gather(tokens).sum()
        return taken, tokens

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """This micro-batch's share of the step's mean loss."""
        batch: Batch = inputs["batch"].to(self.args.device)
        terms = self.objective.loss(self.accelerator.unwrap_model(model), batch)
        loss = terms.total(self.objective.setup.ar_weight) / num_items_in_batch
        nothing = torch.zeros_like(loss)
        parts = [nothing if t is None else t / num_items_in_batch for t in (terms.ar, terms.mask)]
        self.pending.append((torch.stack([loss, *parts]).detach(), batch))
        self.progress.add_batch(batch, self.floating_point_ops({"batch": batch}))
        return loss * self.args.world_size

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """6·N a token of either stream, and 12·layers·hidden for each pair of columns.

        N counts all parameters. Attention is counted dense, as SDPA computes it.
        """
        counts, shape = inputs["batch"].counts, self.shape
        pairs = 12 * shape.num_hidden_layers * shape.hidden_size * counts.attended
        return int(6 * self.parameters * (counts.clean_tokens + counts.masked_tokens) + pairs)

    # --- the curve

    def end_of_step(self, step: int) -> None:
        """Before the weights change: is the loss finite? If so, add it to the curve."""
        losses = torch.stack([values for values, _ in self.pending])
        if not bool(torch.isfinite(losses).all()):
            bad = next(b for values, b in self.pending if not bool(torch.isfinite(values).all()))
            raise TrainingError(
                f"{self.out}: the loss is not finite at step {step + 1}, in the batch of (epoch, "
                f"example) {', '.join(map(str, bad.keys[:8]))}{' …' if len(bad.keys) > 8 else ''}; "
                "nothing was overwritten; lower training.learning_rate and start again"
            )
        self.progress.add_step(*losses.sum(0).tolist())
        self.pending.clear()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a row of the curve where the trainer would print."""
        if self.curve is None or "grad_norm" not in logs:
            return
        p = self.progress
        loss, ar, mask = p.drain()
        with_ar = self.objective.wants_ar
        examples = p.counts.examples
        row: dict[str, float | int | str] = {
            "step": self.state.global_step,
            "epoch": round(examples / self.epoch_examples, 4),
            "examples": examples,
            "learning_rate": f"{logs['learning_rate']:.6g}",
            "loss": f"{loss:.6f}",
            "loss_ar": f"{ar:.6f}" if with_ar else "",
            "loss_mask": f"{mask:.6f}" if self.objective.predicate is not None else "",
            "grad_norm": f"{logs['grad_norm']:.5f}",
            "seconds": f"{p.seconds:.2f}",
        }
        with writing(self.out):
            self.curve.write(row)

    # --- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(self.out):
            super()._save_checkpoint(model, trial)
            folder = self.folder / f"checkpoint-{self.state.global_step}"
            self.progress.save(folder)
            mark_whole(folder)

    def run(self) -> Progress:
        """Train from the newest whole checkpoint on, to the end.

        Raises:
            TrainingError: the loss is not finite.
            SystemExit: 143, after SIGTERM, with the state saved.
        """
        with writing(self.out):
            self.folder.mkdir(parents=True, exist_ok=True)
            resume = newest_whole(self.folder)
            if resume:
                self.progress = Progress.load(resume)
            done = int(resume.name.split("-")[1]) if resume else 0
            self.curve = Curve(self.out / "training.csv", done)
        with _on_sigterm(self._terminate), closing(self.watch):
            self.train(resume_from_checkpoint=str(resume) if resume else None)
        if self.terminated:
            raise SystemExit(143)
        return self.progress

    def _terminate(self) -> None:
        self.terminated = True


class _Watch(TrainerCallback):
    """Progress bar, clock, finite losses, SIGTERM."""

    def __init__(self, trainer: SumTrainer) -> None:
        self.trainer = trainer
        self.bar: Any = None
        self.since = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.since = time.perf_counter()
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
                refresh=False,
            )
        if state.global_step >= state.max_steps:
            control.should_log = True
        if self.trainer.terminated:
            control.should_save = control.should_training_stop = True
        return control

    def close(self) -> None:
        """Finish the progress bar, however the run ended."""
        if self.bar is not None:
            self.bar.close()


class _on_sigterm:  # noqa: N801
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


def _arguments(config: Training, folder: Path, seed: int, steps: int) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.batch_size // config.micro_batch_size,
        num_train_epochs=1,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=math.ceil(config.warmup_ratio * steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=config.dtype == "bfloat16",
        seed=seed,
        data_seed=seed,
        logging_strategy="steps",
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=config.save_steps,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
    )
    if arguments.world_size > 1:
        raise TrainingError("training runs in one process for now: start it without a launcher")
    arguments._n_gpu = 1  # else Trainer spreads a batch over all GPUs and makes it larger
    return arguments
