"""Text from a checkpoint while a person watches: one text at a time, in a process of its own, which alone has torch."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync

from onecard import units
from onecard.errors import OnecardError, UsageError
from onecard.ui.gate import event
from onecard.ui.process import Bug, NoAnswer, Process
from onecard.ui.sources import Source
from onecard.ui.writer import STOP, WRITING_SECONDS, Asked, write
from onecard.untrusted_json import BadJson, field, mapping, number, parsed, positive, text, whole

LARGEST_BYTES = 64 * units.KIB  # of what a page sends
LONGEST_PROMPT = 4096  # characters, as of any setting
MOST_TOKENS = 1024
HOTTEST = 100.0
LOADING_SECONDS = 60.0  # until the first token
PAUSE_SECONDS = 0.25  # between two looks at whether anybody reads
PATIENCE_SECONDS = 3.0  # until a text that was stopped ends by itself


class Playground:
    """One text at a time: whoever comes second is told so."""

    def __init__(self) -> None:
        self._is_writing = False
        self.process = Process(write)

    def close(self) -> None:
        self.process.close()

    async def told(
        self, source: Source, asked: Asked, is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[str, None]:
        """Events of what is written, as it comes; the last is "end", or "refused" with the three lines of an error."""
        patient_until = time.monotonic() + PATIENCE_SECONDS
        while self._is_writing and time.monotonic() < patient_until:
            await asyncio.sleep(PAUSE_SECONDS)
        if self._is_writing:
            yield event("refused", _words(BUSY))
            return
        self._is_writing = True
        pipe: Connection | None = None
        ended = False
        try:
            pipe = await run_sync(self.process.pipe)
            await run_sync(pipe.send, (source, asked))
            latest = time.monotonic() + LOADING_SECONDS
            while not ended:
                for kind, what in await run_sync(_coming, pipe):
                    ended = kind in ("end", "refused")
                    if kind == "model":
                        latest = time.monotonic() + WRITING_SECONDS + PATIENCE_SECONDS
                    yield event(kind, what)
                if await is_gone():
                    return
                if time.monotonic() > latest:
                    raise TOO_LONG
        except OnecardError as problem:
            yield event("refused", _words(problem))
        except (EOFError, OSError, ValueError):  # it ended, or was ended
            yield event("refused", _words(LOST))
        finally:
            with CancelScope(shield=True):
                if pipe is not None and not ended:
                    await run_sync(self._stop, pipe)
            self._is_writing = False

    def _stop(self, pipe: Connection) -> None:
        """Let it stop by itself, so that it keeps its model; one that does not is ended."""
        latest = time.monotonic() + PATIENCE_SECONDS
        with suppress(EOFError, OSError, ValueError):
            pipe.send(STOP)
            while pipe.poll(max(0.0, latest - time.monotonic())):
                if _said(pipe.recv())[0] in ("end", "refused"):
                    return
        self.process.stop()


def _coming(pipe: Connection) -> list[tuple[str, dict[str, Any]]]:
    """What was said since the last look; waits for something a moment."""
    said: list[tuple[str, dict[str, Any]]] = []
    while len(said) < MOST_TOKENS and pipe.poll(0 if said else PAUSE_SECONDS):
        said.append(_said(pipe.recv()))
    return said


IN_A_TERMINAL = "ask in a terminal: onecard sample RUN"
BUSY = NoAnswer(
    "another page is writing", why="one text is written at a time", fix="stop it there, or wait", name="busy"
)
TOO_LONG = NoAnswer("the text took too long", why="the model is too large for a page", fix=IN_A_TERMINAL)
LOST = NoAnswer("the text was lost", why="the process that wrote it has ended", fix=IN_A_TERMINAL)


def _said(message: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(message, Bug):
        print(message.said, file=sys.stderr)  # noqa: T201
        return "refused", _words(message.error())
    if isinstance(message, OnecardError):
        return "refused", _words(message)
    kind, what = message
    return kind, what


def _words(problem: OnecardError) -> dict[str, Any]:
    return {"name": problem.name, "what": problem.what, "why": problem.why, "fix": problem.fix}


def asked_for(body: bytes) -> Asked:
    """What a page asks for; UsageError for what no page sends."""
    try:
        said = mapping(parsed(body))
        asked = Asked(
            prompt=field(said, "prompt", text),
            tokens=field(said, "tokens", positive),
            temperature=field(said, "temperature", number),
            top_k=field(said, "top_k", positive),
            seed=field(said, "seed", whole),
        )
    except BadJson as problem:
        raise _not_asked(str(problem)) from problem
    for name, value, most in (
        ("prompt", len(asked.prompt), LONGEST_PROMPT),
        ("tokens", asked.tokens, MOST_TOKENS),
        ("temperature", asked.temperature, HOTTEST),
    ):
        if value > most:
            raise _not_asked(f"{name} is at most {most:g}{' characters long' * (name == 'prompt')}")
    if asked.temperature < 0 or asked.seed < 0:
        raise _not_asked(f"{'seed' if asked.seed < 0 else 'temperature'} is below 0")
    return asked


def _not_asked(why: str) -> UsageError:
    return UsageError("this text cannot be written", why=why, fix=IN_A_TERMINAL, name="bad-request")
