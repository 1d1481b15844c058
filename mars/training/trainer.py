"""A small subclass of ``transformers.Trainer`` for losses that are sums over response tokens.

One item of its data is one optimizer step (``mars.training.steps``), so the Trainer's own batch
size and accumulation are 1: how many forwards a step takes is decided by packing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments
from transformers.integrations import TensorBoardCallback, is_tensorboard_available
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from mars.config import Training
from mars.models import writing
from mars.training.attention import packed_attention, packs
from mars.training.objectives import Batch, Objective
from mars.training.objectives.base import Key
from mars.training.progress import Curve, Progress, mark_whole, newest_whole
from mars.training.steps import Ahead, Order, Step, Steps
from mars.training.watch import Watch, on_sigterm


class TrainingError(RuntimeError):
    """Training that cannot go on; the message is one line for the user."""


class SumTrainer(Trainer):
    """Losses are sums divided by the response tokens of the whole step, over all processes."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, objective: Objective, order: Order,
        config: Training, out: Path, seed: int, epoch_examples: int, label: str,
    ) -> None:  # fmt: skip
        steps = len(Steps(order, objective, config))
        args = arguments(config, out / "trainer", seed, steps)
        ahead = Ahead(Steps(order, objective, config, args.process_index, args.world_size))
        super().__init__(
            model=model,
            args=args,
            train_dataset=ahead,
            processing_class=tokenizer,
        )
        if self.accelerator.is_fsdp2:
            keep_sums_wide(self.accelerator.state.fsdp_plugin)
        self.ahead = ahead
        self.objective: Objective = objective
        self.out: Path = out
        self.label: str = label
        self.epoch_examples: int = epoch_examples
        self.folder: Path = out / "trainer"
        self.loss_is_scaled_for_ga = True
        self.progress = Progress()
        self.curve: Curve | None = None
        self.pending: list[tuple[Tensor, Batch]] = []
        self.step: Step | None = None
        self.shape: Any = model.config
        self.parameters: int = sum(p.numel() for p in model.parameters())
        self.terminated = False
        for unwanted in (PrinterCallback, ProgressCallback):
            self.remove_callback(unwanted)
        if is_tensorboard_available():
            self.add_callback(_tensorboard(out))
        self.watch = Watch(self)
        self.add_callback(self.watch)

    # --- the steps

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Every process goes through all the steps, and builds its own part of each."""
        return DataLoader(self.train_dataset, batch_size=1, collate_fn=lambda items: items[0])

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """The next step."""
        return [next(epoch_iterator)], None

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Forward and backward of this process's part of a step; its share of the mean loss."""
        step: Step = inputs
        model.train()
        total = torch.zeros((), device=self.args.device)
        for number, batch in enumerate(step.batches):
            with self._reducing(model, number == len(step.batches) - 1), _memory_for(batch):
                with self.compute_loss_context_manager():
                    loss = self.share_of_loss(model, batch, step)
                options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
                # gradients are averaged over processes, and each has its share of the sum
                self.accelerator.backward(loss * self.args.world_size, **options)
            total = total + loss.detach()
        self.step = step
        return total

    def _reducing(self, model: torch.nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Processes reduce their gradients once a step, after its last forward."""
        self.accelerator.gradient_state._set_sync_gradients(last)
        if last or self.is_deepspeed_enabled:
            return nullcontext()
        return self.accelerator.no_sync(model=model)  # type: ignore[no-any-return]

    def share_of_loss(self, model: torch.nn.Module, batch: Batch, step: Step) -> Tensor:
        """This forward's share of the step's mean loss over all processes."""
        terms = model(batch.to(self.args.device))
        loss, *parts = (term * (batch.weight / step.counts.response_tokens) for term in terms)
        self.pending.append((torch.stack([loss, *parts]).detach(), batch))
        return loss

    def floating_point_ops(self, inputs: Any) -> int:
        """6·N a token of either stream, and 12·layers·hidden for each pair that is seen.

        N counts all parameters.
        """
        counts, shape = inputs.counts, self.shape
        pairs = 12 * shape.num_hidden_layers * shape.hidden_size * counts.attended
        return int(6 * self.parameters * (counts.clean_tokens + counts.masked_tokens) + pairs)

    # --- the curve

    def end_of_step(self, number: int) -> None:
        """Before the weights change: are loss and gradient finite? If so, add to the curve.

        Every process has the same sums, so all of them stop together.
        """
        assert self.step is not None
        own = torch.stack([values for values, _ in self.pending]).sum(0)
        own = torch.cat([own, own.new_tensor([not self._has_finite_gradients()])])
        *sums, broken_shards = self.accelerator.reduce(own, reduction="sum")
        losses = torch.stack(sums)
        if not bool(torch.isfinite(losses).all()):
            broken = (b for values, b in self.pending if not bool(torch.isfinite(values).all()))
            raise self._not_finite("loss", number, next((b.keys for b in broken), self.step.keys))
        # DeepSpeed keeps its gradients to itself, and has stepped or skipped the step by now
        if broken_shards or self.accelerator.optimizer_step_was_skipped:
            raise self._not_finite("gradient", number, self.step.keys)
        self.progress.add_counts(self.step.counts, self.floating_point_ops(self.step))
        self.progress.add_step(*losses.tolist())
        self.pending.clear()

    def _has_finite_gradients(self) -> bool:
        """Of what this process holds; clipping leaves what was not finite so."""
        held = [_local(p.grad) for p in self.model.parameters() if p.grad is not None]
        # together, so that a GPU is waited for once
        return not held or bool(torch.stack([torch.isfinite(x).all() for x in held]).all())

    def _not_finite(self, what: str, number: int, keys: Sequence[Key]) -> TrainingError:
        return TrainingError(
            f"{self.out}: the {what} is not finite at step {number + 1}, in the batch of (epoch, "
            f"example) {', '.join(map(str, keys[:8]))}{' …' if len(keys) > 8 else ''}; no model "
            "was written and the last checkpoint is kept: look at these examples; started again, "
            "training goes on from that checkpoint and comes to the same step, while a changed "
            "recipe, such as a lower training.learning_rate, removes it and begins at step 1"
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a row of the curve where the trainer would print."""
        if self.curve is None or "grad_norm" not in logs:
            return
        p = self.progress
        loss, ar, mask = p.drain()
        examples = p.counts.examples
        row: dict[str, float | int | str] = {
            "step": self.state.global_step,
            "epoch": round(examples / self.epoch_examples, 4),
            "examples": examples,
            "learning_rate": f"{logs['learning_rate']:.6g}",
            "loss": f"{loss:.6f}",
            "loss_ar": f"{ar:.6f}" if self.objective.wants_ar else "",
            "loss_mask": f"{mask:.6f}" if self.objective.wants_mask else "",
            "grad_norm": f"{logs['grad_norm']:.5f}",
            "seconds": f"{p.seconds:.2f}",
        }
        with writing(self.out):
            self.curve.write(row)
        shown = {name: float(value) for name, value in row.items() if value != ""}
        shown["tokens_per_second"] = self.watch.tokens_per_second()
        self.callback_handler.on_log(self.args, self.state, self.control, shown)

    # --- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(self.out):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                folder = self.folder / f"checkpoint-{self.state.global_step}"
                self.progress.save(folder)
                mark_whole(folder)
        self.accelerator.wait_for_everyone()

    def run(self) -> Progress:
        """Train from the newest whole checkpoint on, to the end.

        Raises:
            TrainingError: the loss or the gradient is not finite.
            SystemExit: 143, after SIGTERM, with the state saved.
        """
        with writing(self.out):
            resume = None
            if self.is_world_process_zero():
                self.folder.mkdir(parents=True, exist_ok=True)
                resume = newest_whole(self.folder)  # clears broken ones away
            (resume,) = broadcast_object_list([resume])
            if resume:
                self.progress = Progress.load(resume)
            done = int(resume.name.split("-")[1]) if resume else 0
            if self.is_world_process_zero():
                self.curve = Curve(self.out / "training.csv", done)
        learning = learns(self.model, self.objective)
        with on_sigterm(self._terminate), closing(self.watch), closing(self.ahead), learning:
            self.train(resume_from_checkpoint=str(resume) if resume else None)
        if self.stopping():
            raise SystemExit(143)
        return self.progress

    def whole_model(self) -> PreTrainedModel | None:
        """The trained model in one piece, in the main process; every process has to ask."""
        model: PreTrainedModel = self.accelerator.unwrap_model(self.model)
        sharded = self.accelerator.distributed_type == DistributedType.FSDP
        state = self.accelerator.get_state_dict(self.model_wrapped) if sharded else None
        if not self.is_world_process_zero():
            return None
        if sharded:
            model = AutoModelForCausalLM.from_config(model.config)
            model.load_state_dict(state)
        return model

    def _terminate(self) -> None:
        self.terminated = True

    def stopping(self) -> bool:
        """Whether any process was asked to end."""
        asked = torch.tensor(float(self.terminated), device=self.args.device)
        return bool(self.accelerator.reduce(asked, reduction="sum") > 0)


@contextmanager
def _memory_for(batch: Batch) -> Iterator[None]:
    """Have a forward that the memory does not hold say what to set instead."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        columns = batch.layout.input_ids.numel()
        smaller = ""
        if len(batch.keys) > 1:  # else it is one conversation, which nothing takes apart
            name = "micro_batch_tokens" if len(batch.layout.input_ids) > 1 else "row_length"
            smaller = f"training.{name} to {columns // 2}, or "
        raise TrainingError(
            f"out of GPU memory in a forward of {columns} tokens and masks "
            f"({' '.join(str(error).split())[:160]}): set {smaller}"
            "training.activation_checkpointing to true, and start again; "
            "training goes on from the newest checkpoint"
        ) from None


@contextmanager
def learns(model: PreTrainedModel, objective: Objective) -> Iterator[None]:
    """Have ``model(batch)`` give (loss, L_AR, L_mask), sums, and attend over packed rows.

    Whatever wraps a model to reduce gradients or shard weights (DDP, FSDP, DeepSpeed) follows its
    forward, so the loss, head included, is computed inside it.
    """

    def forward(self: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        terms = objective.loss(self, batch)
        loss = terms.total(objective.setup.ar_weight)
        nothing = torch.zeros_like(loss)
        return loss, *(nothing if t is None else t.detach() for t in (terms.ar, terms.mask))

    with packed_attention(model) if packs(model.device) else nullcontext():
        model.forward = MethodType(forward, model)
        try:
            yield
        finally:
            del model.forward


def _local(grad: Tensor) -> Tensor:
    """The shard of a sharded gradient that lies here."""
    return grad.to_local() if isinstance(grad, DTensor) else grad


def keep_sums_wide(plugin: Any) -> None:
    """Have FSDP add up gradients, and leave losses, in float32; its layers compute in bfloat16."""
    if (policy := plugin.mixed_precision_policy) is not None:
        wide = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
        plugin.mixed_precision_policy = wide


def _tensorboard(out: Path) -> TensorBoardCallback:
    """Logs in ``tensorboard/`` beside the trainer's state, which they outlive.

    Not those of ``mars pretrain``, whose folder of work goes when the checkpoint is written.
    """
    callback = TensorBoardCallback()
    callback.logging_dir = str(out / "tensorboard")
    return callback


def device() -> str:
    """Where training takes place: cuda, but for what accelerate is told to start on the CPU."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU") in ("1", "true")
    return "cuda" if torch.cuda.is_available() and not on_cpu else "cpu"


def arguments(config: Training, folder: Path, seed: int, steps: int) -> TrainingArguments:
    """What ``transformers`` needs to know; what is launched by accelerate comes from there."""
    made = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,  # an item is a whole step
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=math.ceil(config.warmup_ratio * steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=config.dtype == "bfloat16",
        ddp_find_unused_parameters=False,
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
        use_cpu=device() == "cpu",
    )
    if made.world_size == 1:
        made._n_gpu = 1  # else Trainer spreads a batch over all GPUs and makes it larger
    return made
