"""A process of its own that answers questions: one that takes too long is ended, whatever it is doing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from onecard.errors import OnecardError

COMMANDS = {"run": "doctor", "looks": "doctor", "cards": "gpus"}  # of questions that have another name there
MOST_WAITING = 8  # questions to one worker


class NoAnswer(OnecardError):
    """The question was too large, or there are too many."""

    name = "too-slow"


class Worker:
    """Answers one question at a time, in a process that starts with the first one.

    One in the `background` takes the processor only where nobody else wants it: a run may train on this machine.
    """

    def __init__(self, *, background: bool = False) -> None:
        self._background = background
        self._one_at_a_time = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._changing = threading.Lock()  # of the process, which may be ended from another thread
        self._ended = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, question: str, *asked: Any, seconds: float) -> Any:
        """The answer; the OnecardError that the question raised, NoAnswer after `seconds`."""
        if not self._waiting.acquire(blocking=False):
            raise NoAnswer("too many questions at once", why=f"{MOST_WAITING} are waiting", fix="try again")
        try:
            with self._one_at_a_time:
                return self._ask(question, asked, seconds)
        finally:
            self._waiting.release()

    def _ask(self, question: str, asked: tuple[Any, ...], seconds: float) -> Any:
        pipe = self._pipe_to_process()
        try:
            pipe.send((question, asked))
            if not pipe.poll(seconds):
                self._stop()
                raise NoAnswer(
                    f"no answer within {seconds:g} seconds",
                    why="the question is too large for a page",
                    fix=f"ask in a terminal, where nothing ends it: onecard {COMMANDS.get(question, question)}",
                )
            answer = pipe.recv()
        except (EOFError, OSError, ValueError) as problem:  # it ended, or was ended
            self._stop()
            raise NoAnswer(
                "the answer was lost", why="the process that worked on it ended", fix="try again"
            ) from problem
        if isinstance(answer, OnecardError):
            raise answer
        if isinstance(answer, _Bug):
            print(answer.said, file=sys.stderr)  # noqa: T201
            raise NoAnswer(
                "this is a bug in onecard", why="the terminal shows where", fix="please report it", name="bug"
            )
        return answer

    def _pipe_to_process(self) -> Connection:
        """The pipe to the process, which is started where there is none."""
        with self._changing:
            if self._ended:
                raise NoAnswer("the server ends", why="it was told to", fix="start it again: onecard ui")
            if self._pipe is None:
                context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(target=_answer, args=(theirs, self._background), daemon=True)
                with _deaf_to_ctrl_c():
                    self._process.start()
                theirs.close()
            return self._pipe

    def _stop(self) -> None:
        with self._changing:
            if self._process is not None and self._pipe is not None:
                self._process.kill()
                self._process.join()
                self._pipe.close()
            self._process = self._pipe = None

    def close(self) -> None:
        """End the process, for good."""
        self._ended = True
        self._stop()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process that starts in here does not hear Ctrl-C, not even while it loads: that is for the server."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # first: when multiprocessing starts this helper, it ends all blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Bug:
    """What a question that failed left behind, for the terminal."""

    def __init__(self, said: str) -> None:
        self.said = said


def _answer(pipe: Connection, background: bool) -> None:
    """Answer until the server is gone."""
    if background and hasattr(os, "nice"):  # not on Windows
        os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    gc.set_threshold(50_000)  # records are many small objects, and none of them is a circle
    from onecard.ui.answers import QUESTIONS

    while True:
        try:
            question, asked = pipe.recv()
        except (EOFError, OSError):
            return
        answer: Any
        try:
            answer = QUESTIONS[question](*asked)
        except OnecardError as problem:
            answer = Told(problem)
        except Exception:
            answer = _Bug(traceback.format_exc())
        pipe.send(answer)


class Told(OnecardError):
    """An error on its way through a pipe: its words, whatever it was made of."""

    def __init__(self, problem: OnecardError) -> None:
        super().__init__(problem.what, why=problem.why, fix=problem.fix, name=problem.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _told, (self.what, self.why, self.fix, self.name)


def _told(what: str, why: str, fix: str, name: str) -> OnecardError:
    return OnecardError(what, why=why, fix=fix, name=name)
