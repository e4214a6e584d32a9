"""The process that writes text: one model in memory, token by token, until it is told to stop."""

from __future__ import annotations

import codecs
import gc
import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.errors import ConfigError, OnecardError
from onecard.ui.process import Bug, Told
from onecard.ui.sources import Source
from onecard.visible import visible

if TYPE_CHECKING:
    from onecard.inputs.opened import Opened

WRITING_SECONDS = 120.0  # of one text
IDLE_SECONDS = 300.0  # without a question, after which the process ends and its memory is free
STOP = "stop"  # what a reader who has gone sends
LESS_IMPORTANT = 10  # by nice: beside a run on all cores 19 would leave it next to nothing
DEVICE = "cpu"  # a run may train on the card, and would be short of what a model takes there

Said = tuple[str, dict[str, Any]]
STOPPED: Said = "end", {"why": "stopped"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to continue, and how."""

    prompt: str
    tokens: int
    temperature: float
    top_k: int
    seed: int


def write(pipe: Connection) -> None:
    """Write what is asked for, one text at a time, until the server is gone or nobody has asked for long."""
    _last_in_line()
    model = _Model()
    with suppress(EOFError, OSError):  # the server is gone
        while pipe.poll(IDLE_SECONDS):
            question = pipe.recv()
            if question != STOP:  # one that came after the end of its text
                _answer(pipe, model, *question)


def _last_in_line() -> None:
    """The first that the system slows down, and that it ends when memory is short: never a run that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    if hasattr(os, "nice"):  # not on Windows
        os.nice(LESS_IMPORTANT)
    with suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")


def _answer(pipe: Connection, model: _Model, source: Source, asked: Asked) -> None:
    last: Said | OnecardError | Bug = STOPPED
    try:
        for said in _written(model, source, asked):
            if said[0] == "end":
                last = said
                break
            pipe.send(said)
            if pipe.poll() and pipe.recv() == STOP:
                break
    except OnecardError as problem:
        last = Told(problem)
    except Exception:
        last = Bug(traceback.format_exc())
    pipe.send(last)


class _Model:
    """The model that was asked for last."""

    def __init__(self) -> None:
        self._key: object = None
        self._opened: Opened | None = None

    def of(self, source: Source) -> Opened:
        from onecard.inputs.opened import open_run
        from onecard.runs.folder import checkpoints_in

        source.check_with_checkpoints()
        key = source.id, *((saved.path, saved.path.stat().st_mtime_ns) for saved in checkpoints_in(source.path))
        if self._opened is None or key != self._key:
            self._opened = None  # two never lie in memory
            gc.collect()
            self._opened = open_run(source.path, device=DEVICE, alone=True)
            self._key = key
        return self._opened


def _written(model: _Model, source: Source, asked: Asked) -> Iterator[Said]:
    """What is known of the model, each token's text, and how it went."""
    yield "begin", {}
    opened = model.of(source)
    from onecard.data.tokenizers import new_text
    from onecard.runs.folder import CHECKPOINTS, checkpoint_name
    from onecard.train.interchange import not_numbers
    from onecard.train.sample import generate

    config, tokenizer = opened.config, opened.tokenizer
    prompt = tokenizer.encode(asked.prompt) if asked.prompt else new_text(tokenizer, config.vocab_size)
    if max(prompt, default=0) >= config.vocab_size:
        raise ConfigError(
            "the model has no token for a part of this text",
            why=f"its vocabulary has {config.vocab_size:,} tokens, its tokenizer {tokenizer.vocab_size:,}",
            fix="write it in other words",
            name="no-token",
        )
    yield "model", {"step": opened.step, "notes": list(opened.notes)}
    tokens = generate(
        opened.model,
        prompt,
        max_new_tokens=asked.tokens,
        temperature=asked.temperature,
        top_k=asked.top_k,
        seed=asked.seed,
        vocab_size=tokenizer.vocab_size,
    )
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens
    began, count, why = time.monotonic(), 0, "length"
    try:
        for count, token in enumerate(tokens, 1):
            yield "text", {"text": visible(decoder.decode(tokenizer.token_bytes(token))), "tokens": count}
            if time.monotonic() - began > WRITING_SECONDS:
                why = "time"
                break
    except FloatingPointError as problem:
        saved = source.path / CHECKPOINTS / checkpoint_name(opened.step)
        raise not_numbers(source.path, saved, why=str(problem)) from problem
    seconds = time.monotonic() - began
    yield "text", {"text": decoder.decode(b"", final=True), "tokens": count}
    yield "end", {"why": why, "seconds": seconds, "tokens_per_second": count / seconds if seconds else None}
