"""Chunks of rows worked on by several processes, and handed back in order."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import torch
from transformers import PreTrainedTokenizerBase as Tokenizer

from mars.data.sources import Chunk, DataError

MANY = 16
"""Fewer chunks are done before processes would have started."""

T = TypeVar("T")
Work = Callable[[Tokenizer, Chunk], T]


def in_order(
    work: Work[T], chunks: Iterator[Chunk], tokenizer: Tokenizer, processes: int | None
) -> Iterator[T]:
    """The work of every chunk, in the order of the chunks, a few of them ahead of the caller.

    Args:
        work: what to do, a function that another process can import.
        chunks: the rows.
        tokenizer: given to ``work`` with every chunk.
        processes: None: as many as torch may use threads, where there are many chunks.
    """
    if processes is None:
        first = list(islice(chunks, MANY))
        chunks = chain(first, chunks)
        processes = torch.get_num_threads() if len(first) == MANY else 1
    if processes <= 1:
        yield from (work(tokenizer, chunk) for chunk in chunks)
        return
    # Not fork: torch and tokenizers run threads.
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    context.set_forkserver_preload(["mars.data.prepare"])  # torch is imported once, not in each
    with ProcessPoolExecutor(processes, context, _start_worker, (work, tokenizer)) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for chunk in islice(chunks, 2 * processes):
                waiting.append(pool.submit(_run, chunk))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(_run, chunk) for chunk in islice(chunks, 1))
        except BrokenProcessPool:
            raise DataError(
                "a process that encodes rows was killed, perhaps for memory; use fewer of them"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_worker: Callable[[Chunk], Any] | None = None


def _start_worker(work: Work[Any], tokenizer: Tokenizer) -> None:
    """In a worker: keep what every chunk needs, and end with the process that asked for it."""
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = partial(work, tokenizer)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(chunk: Chunk) -> Any:
    assert _worker is not None
    return _worker(chunk)
