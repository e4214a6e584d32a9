"""A process of its own that answers questions: one that takes too long is ended, whatever it is doing."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from onecard.errors import OnecardError
from onecard.ui.process import Bug, NoAnswer, Process, Told

COMMANDS = {"run": "doctor", "looks": "doctor", "cards": "gpus"}  # of questions that have another name there
MOST_WAITING = 8  # questions to one worker


class Worker:
    """Answers one question at a time, in a process that starts with the first one.

    One in the `background` takes the processor only where nobody else wants it: a run may train on this machine.
    """

    def __init__(self, *, background: bool = False) -> None:
        self._one_at_a_time = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._process = Process(_answer, background)

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
        pipe = self._process.pipe()
        try:
            pipe.send((question, asked))
            if not pipe.poll(seconds):
                self._process.stop()
                raise NoAnswer(
                    f"no answer within {seconds:g} seconds",
                    why="the question is too large for a page",
                    fix=f"ask in a terminal, where nothing ends it: onecard {COMMANDS.get(question, question)}",
                )
            answer = pipe.recv()
        except (EOFError, OSError, ValueError) as problem:  # it ended, or was ended
            self._process.stop()
            raise NoAnswer(
                "the answer was lost", why="the process that worked on it ended", fix="try again"
            ) from problem
        if isinstance(answer, OnecardError):
            raise answer
        if isinstance(answer, Bug):
            print(answer.said, file=sys.stderr)  # noqa: T201
            raise answer.error()
        return answer

    def close(self) -> None:
        """End the process, for good."""
        self._process.close()


def _answer(pipe: Connection, background: bool) -> None:
    """Answer until the server is gone."""
    if background and hasattr(os, "nice"):  # not on Windows
        os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    gc.disable()  # between two answers, and not while somebody waits for one
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
            answer = Bug(traceback.format_exc())
        pipe.send(answer)
        gc.collect(1)  # of what this answer made; all that is older would take 40 ms each time, and is kept anyway
