"""`mars generate`: prompts from words, a file or the keyboard; answers as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from mars.decoding.contract import DecodingError
from mars.decoding.generate.api import prepare
from mars.decoding.generate.options import conversations
from mars.decoding.generate.run import Answer, Run


def read_prompts(words: Sequence[str], file: str | None, keyboard: TextIO) -> list[str]:
    """The prompts: the words, then the lines of a file (``-``: standard input).

    Where there are none and someone sits at the keyboard, one is asked for.
    """
    prompts = list(words)
    if file == "-":
        prompts += [line.rstrip("\n") for line in keyboard if line.strip()]
    elif file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise DecodingError(
                f"--prompts {file}: cannot be read ({reason}); give a text file, a prompt a line"
            ) from None
        prompts += [line for line in text.splitlines() if line.strip()]
    elif not words and keyboard.isatty():
        print("prompt: ", end="", file=sys.stderr, flush=True)
        prompts = [line] if (line := keyboard.readline().strip()) else []
    if not prompts:
        raise DecodingError("no prompt: give one as a word, or --prompts FILE (- for stdin)")
    return prompts


def answer(
    checkpoint: str,
    prompts: Sequence[str],
    *,
    as_it_comes: bool = True,
    as_json: bool = False,
    **options: Any,
) -> int:
    """Print the answers to the prompts, in their order, and what they took; the exit status.

    Args:
        checkpoint: a folder or ``embedded:<name>``.
        prompts: what the user says.
        as_it_comes: show a single prompt's answer token by token.
        as_json: print one JSON object a line instead.
        **options: of ``Options``.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    chats, _ = conversations(list(prompts))
    run: Run | None = None
    started = time.perf_counter()
    page = _Page(prompts, as_json, as_it_comes and len(prompts) == 1 and not as_json)
    try:
        run = prepare(checkpoint, chats, **options)
        started = time.perf_counter()
        for number, text, finished in run.pieces(page.as_it_comes):
            page.add(number, text, finished)
    except KeyboardInterrupt:
        page.leave()
        tokens = run.tokens_so_far() if run else 0
        print(f"interrupted after {tokens} tokens", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    print(summary(list(page.answers.values()), time.perf_counter() - started), file=sys.stderr)
    return 0


def summary(answers: Sequence[Answer], seconds: float) -> str:
    """What some answers took together, as a line."""
    tokens = sum(made.tokens for made in answers)
    forwards = sum(made.forwards for made in answers)
    many = f"{len(answers)} answers, " if len(answers) > 1 else ""
    return (
        f"{many}{tokens} tokens, {forwards} forwards, {tokens / max(forwards, 1):.2f} tokens per "
        f"forward, {tokens / max(seconds, 1e-9):.1f} tokens/s"
    )


class _Page:
    """Standard output: the answers in the order of the prompts, each as soon as its turn comes."""

    def __init__(self, prompts: Sequence[str], as_json: bool, as_it_comes: bool) -> None:
        self.answers: dict[int, Answer] = {}
        self.as_it_comes = as_it_comes
        self._prompts, self._as_json = prompts, as_json
        self._next = 0  # the first answer that is not yet printed

    def add(self, number: int, text: str, finished: Answer | None) -> None:
        """Take a piece; print what can be."""
        if self.as_it_comes:
            print(text, end="" if finished is None else "\n", flush=True)
        if finished is not None:
            self.answers[number] = finished
        while self._next in self.answers:
            self._print(self._next)
            self._next += 1

    def leave(self) -> None:
        """Print what is finished, although answers before it are not."""
        if self.as_it_comes and not self.answers:
            print(flush=True)
        for number in sorted(self.answers):
            if number >= self._next:
                self._print(number)

    def _print(self, number: int) -> None:
        made = self.answers[number]
        if self._as_json:
            line = json.dumps({"prompt": self._prompts[number], **asdict(made)}, ensure_ascii=False)
            print(line, flush=True)
        elif not self.as_it_comes:
            print(f"{made.text}\n" if len(self._prompts) > 1 else made.text, flush=True)
