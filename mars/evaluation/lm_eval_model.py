"""The lm-eval model ``mars``: any decoder of ours behind lm-eval's generation interface.

Importing this module registers the model with lm-eval. What has been decoded before is taken from
the records, so re-scoring runs no model.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from mars.config import Decoding
from mars.decoding.contract import Decoder, Generation, Request
from mars.decoding.make import make_decoder
from mars.evaluation.memory import within_memory
from mars.evaluation.model_arguments import decoding_settings, positive
from mars.evaluation.records import Record, RecordStore, decoding_code, digest, fingerprint
from mars.evaluation.source import EvaluationError, Source, choose_device, open_checkpoint

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Document and answer → what each filter of its task reads in the answer."""

    @property
    def identity(self) -> str:
        """Hash of what the filters are."""
        ...

    def __call__(self, document: Any, answer: str, /) -> dict[str, str]: ...


DEFAULT_BUDGET = 256
"""New tokens where neither the study nor the task names a number."""

KEEP_SECONDS = 1.0
"""At most so much work is lost where a run is killed."""

KNOWN_GEN_KWARGS = {"until", "max_gen_toks", "temperature", "do_sample"}


@dataclass(frozen=True)
class _Job:
    """One request on its way: what is decoded, and under which name it is kept."""

    key: str
    task: str
    doc_id: int
    repeat: int
    prompt_hash: str
    request: Request
    until: tuple[str, ...]
    temperature: float
    document: Any


@register_model("mars")
class MarsLM(TemplateLM):
    """lm-eval model: a checkpoint, a decoding setting and a record store.

    Args:
        pretrained: checkpoint folder, ``embedded:<name>``, or an open ``Source``.
        batch_size: rows in flight together.
        max_new_tokens: overrides every task's budget; ``task`` keeps the task's own.
        dtype, device: of the model (with a ``Source``: leave them out).
        records: folder of the records; None keeps them in memory.
        benchmark: the benchmark's name in the records (default: the task's name).
        decoding: decoder, block_size, tau, rule, cache, cache_block, temperature.
    """

    def __init__(
        self,
        pretrained: str | Path | Source,
        batch_size: int | str = 64,
        max_new_tokens: int | str = "task",
        dtype: str | None = None,
        device: str | None = None,
        records: str | Path | None = None,
        benchmark: str | None = None,
        **decoding: Any,
    ) -> None:
        super().__init__()
        self.batch_size = positive("batch_size", batch_size)
        self.max_new_tokens: int | Literal["task"] = "task"
        if max_new_tokens != "task":
            self.max_new_tokens = positive("max_new_tokens", max_new_tokens)
        settings = decoding_settings(decoding)
        if isinstance(pretrained, Source):
            if dtype is not None or device is not None:
                raise EvaluationError("dtype and device are set where the checkpoint is opened")
            self.source = pretrained
        else:
            self.source = open_checkpoint(pretrained, dtype or "float32", choose_device(device))
        self.tokenizer = self.source.tokenizer
        self._prompts: dict[str, tuple[tuple[int, ...], str]] = {}
        path = None if records is None else Path(records) / f"{settings.id}.jsonl"
        self.use(settings, RecordStore(path), benchmark)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> MarsLM:
        """From ``--model_args``, which go before lm-eval's own options and their defaults."""
        options = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**options | arg_dict)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> MarsLM:
        """As ``create_from_arg_obj``, from text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def use(
        self,
        settings: Decoding,
        store: RecordStore,
        benchmark: str | None = None,
        versions: Mapping[str, str] | None = None,
        *,
        multiturn: bool = False,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        """Decode by these settings from now on, and keep records there.

        Args:
            settings: the decoding settings.
            store: where records are found and kept.
            benchmark: its name in the records (default: the task's name).
            versions: task name → version, part of the fingerprint.
            multiturn: shots are turns of their own; part of the fingerprint.
            readers: task name → what is kept of its answers, instead of their text.
        """
        self.settings, self.store, self.benchmark = settings, store, benchmark
        self.versions, self.multiturn = dict(versions or {}), multiturn
        self.readers = dict(readers or {})
        self.used: list[Record] = []
        self._decoders: dict[float, Any] = {}
        self._template_hash: str | None = None

    # ------------------------------------------------------------------ text and tokens

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids. A text that already starts with the BOS token is given no second one."""
        if kwargs:
            raise EvaluationError(f"tok_encode: unknown arguments {', '.join(kwargs)}")
        if add_special_tokens is None:
            bos = self.tokenizer.bos_token
            add_special_tokens = not (bos and string.startswith(bos))
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def template_hash(self) -> str:
        """Hash of the chat template."""
        if self._template_hash is None:
            self._template_hash = digest(str(self.tokenizer.chat_template))
        return self._template_hash

    @property
    def least_response(self) -> int:
        """Positions that the shortest response takes: block diffusion fills whole blocks."""
        return self.settings.block_size if self.settings.decoder == "block_diffusion" else 1

    # ------------------------------------------------------------------ generation

    def needs(self, requests: Sequence[Instance]) -> list[tuple[str, int, int, int]]:
        """Task, document, prompt tokens and budget of each request; nothing is decoded."""
        return [
            (job.task, job.doc_id, len(job.request.prompt_ids), job.request.max_new_tokens)
            for job in self._jobs(requests)
        ]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The texts of the requests, in order; only what has no record is decoded."""
        jobs = self._jobs(requests)
        known = {job.key: self.store.get(job.key) for job in jobs}
        missing = {job.key: job for job in jobs if known[job.key] is None}
        if missing and self.source.load is None:
            first = next(iter(missing.values()))
            raise EvaluationError(
                f"{self.store.path}: {len(missing)} of {len(jobs)} documents have no record "
                f"(the first: {first.task}, document {first.doc_id}); evaluate before re-scoring"
            )
        self._decode(list(missing.values()), disable_tqdm)
        found = [known[job.key] or self.store.get(job.key) for job in jobs]
        self.used = [record for record in found if record is not None]
        return [record.said for record in self.used]

    def decode_share(
        self, requests: Sequence[Instance], index: int, of: int, known: Container[str]
    ) -> None:
        """Decode one of ``of`` shares of the requests into the store; those ``known`` are done."""
        missing = {job.key: job for job in self._jobs(requests) if job.key not in known}
        jobs = sorted(missing.values(), key=lambda job: (-len(job.request.prompt_ids), job.key))
        self._decode([job for job in jobs[index::of] if job.key not in self.store], False)

    def _jobs(self, requests: Sequence[Instance]) -> list[_Job]:
        seen: Counter[tuple[str, int]] = Counter()
        decoding = self.settings.model_dump()
        jobs = []
        for instance in requests:
            task, doc_id = str(instance.task_name), int(instance.doc_id or 0)
            context, gen_kwargs = instance.args[0], instance.args[1]
            until, budget, temperature = self._wishes(task, gen_kwargs)
            repeat = seen[task, doc_id]
            seen[task, doc_id] += 1
            ids, prompt_hash = self._prompt(context)
            if not ids:
                raise EvaluationError(
                    f"{task}, document {doc_id}: the prompt is empty; leave the document out"
                )
            reader = self.readers.get(task)
            key = fingerprint(
                {
                    "code": decoding_code(self.settings.decoder),
                    "checkpoint": self.source.checkpoint,
                    "dtype": self.source.dtype,
                    "device": self.source.device.partition(":")[0],
                    "decoding": decoding | {"temperature": temperature},
                    "until": until,
                    "max_new_tokens": budget,
                    "task": task,
                    "version": self.versions.get(task),
                    "doc_id": doc_id,
                    "repeat": repeat,
                    "template": self.template_hash(),
                    "multiturn": self.multiturn,
                    "prompt": prompt_hash,
                    **({"filters": reader.identity} if reader else {}),
                }
            )
            stop = tuple(text for text in until if text != self.tokenizer.eos_token)
            request = Request(prompt_ids=ids, max_new_tokens=budget, stop=stop)
            jobs.append(
                _Job(
                    key, task, doc_id, repeat, prompt_hash, request, tuple(until), temperature,
                    instance.doc,
                )
            )  # fmt: skip
        return jobs

    def _prompt(self, context: str) -> tuple[tuple[int, ...], str]:
        """Ids and hash of a prompt; the same prompts come back under every setting."""
        if context not in self._prompts:
            self._prompts[context] = tuple(self.tok_encode(context)), digest(context)
        return self._prompts[context]

    def _wishes(self, task: str, gen_kwargs: dict[str, Any]) -> tuple[list[str], int, float]:
        """Stop sequences, budget and temperature of a request."""
        wished = normalize_gen_kwargs(gen_kwargs, default_max_gen_toks=DEFAULT_BUDGET)
        if unknown := set(wished) - KNOWN_GEN_KWARGS:
            raise EvaluationError(
                f"{task}: generation_kwargs {', '.join(sorted(unknown))} cannot be honoured; "
                f"known are {', '.join(sorted(KNOWN_GEN_KWARGS))}"
            )
        until = handle_stop_sequences(wished["until"], self.tokenizer.eos_token)
        budget = wished["max_gen_toks"] if self.max_new_tokens == "task" else self.max_new_tokens
        if budget < 1:
            raise EvaluationError(f"{task}: max_gen_toks is {budget}; it must be at least 1")
        temperature = float(wished.get("temperature", 0.0)) if wished["do_sample"] else 0.0
        return [text for text in until if text], budget, self.settings.temperature or temperature

    def _decode(self, jobs: list[_Job], quiet: bool) -> None:
        """Decode what fits the context; the rest is an empty answer."""
        if not jobs:
            return
        room = self.source.context - self.least_response
        fitting = [job for job in jobs if len(job.request.prompt_ids) <= room]
        if too_long := [job for job in jobs if len(job.request.prompt_ids) > room]:
            log.warning(
                "prompts of more than %d of the model's %d positions leave no room for a "
                "response: %s; they count as empty, truncated answers",
                room, self.source.context, _named(too_long),
            )  # fmt: skip
            nothing = Generation(ids=[], accepted=[], finish="context", confidence=[])
            self.store.add(self._record(job, nothing) for job in too_long)
        what = f"{self.benchmark or jobs[0].task} {self.settings.id}"
        with tqdm(
            total=len(fitting), desc=what, unit="doc", disable=quiet or None, leave=False
        ) as bar:
            for temperature in dict.fromkeys(job.temperature for job in fitting):
                alike = [job for job in fitting if job.temperature == temperature]
                self._decode_alike(alike, self._decoder(temperature), bar)

    def _decode_alike(self, jobs: list[_Job], decoder: Decoder, bar: Any) -> None:
        """Decode, keeping what is finished every second, and when it ends in whatever way."""
        # of equal prompts in a fixed order, whatever order they came in: batches are the same
        jobs = sorted(jobs, key=lambda job: (-len(job.request.prompt_ids), job.request.prompt_ids))
        finished: list[Record] = []
        kept = time.monotonic()
        try:
            asked = [job.request for job in jobs]
            for index, made in within_memory(decoder, asked, self.batch_size):
                finished.append(self._record(jobs[index], made))
                bar.update()
                if time.monotonic() - kept > KEEP_SECONDS:
                    self.store.add(finished)
                    finished, kept = [], time.monotonic()
        finally:
            self.store.add(finished)

    def _decoder(self, temperature: float) -> Any:
        if temperature not in self._decoders:
            assert self.source.load is not None
            settings = self.settings.model_copy(update={"temperature": temperature})
            self._decoders[temperature] = make_decoder(self.source.load(), self.tokenizer, settings)
        return self._decoders[temperature]

    def _record(self, job: _Job, generation: Generation) -> Record:
        text = self.tokenizer.decode(generation.ids, skip_special_tokens=True)
        text = postprocess_generated_text(text, list(job.until), None)
        read = self.readers.get(job.task)
        finish = generation.finish
        return Record(
            fingerprint=job.key,
            benchmark=self.benchmark or job.task,
            task=job.task,
            doc_id=job.doc_id,
            repeat=job.repeat,
            prompt_hash=job.prompt_hash,
            output="" if read else text,
            tokens=len(generation.ids),
            forwards=len(generation.accepted),
            accepted=list(generation.accepted),
            finish=finish,
            truncated=finish in ("budget", "context"),
            score=None,
            seconds=round(generation.seconds, 6),
            confidence=[round(value, 5) for value in generation.confidence],
            answers=read(job.document, text) if read else None,
            output_hash=digest(text) if read else None,
        )

    def scored(self, scores: Mapping[tuple[str, int], float]) -> list[Record]:
        """The records last used with their scores, which are written to the store."""
        done = [replace(r, score=scores[r.task, r.doc_id]) for r in self.used]
        if done != list(self.store):
            self.store.replace(done)
        return done

    # ------------------------------------------------------------------ what is not offered

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise _only_generation()

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise _only_generation()

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> Any:
        raise _only_generation()


def _only_generation() -> EvaluationError:
    return EvaluationError(
        "the model `mars` generates text and gives no log-likelihoods: choose tasks with "
        "output_type generate_until, or evaluate the checkpoint with lm-eval's `hf` model"
    )


def _named(jobs: Sequence[_Job]) -> str:
    """Task and document of the first of some jobs, and how many more there are."""
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].task}, document {jobs[0].doc_id}{more}"
