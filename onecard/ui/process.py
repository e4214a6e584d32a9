"""A process of its own at the other end of a pipe."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from onecard.errors import OnecardError


class NoAnswer(OnecardError):
    """The question was too large, or there are too many."""

    name = "too-slow"


class Process:
    """Starts when it is first needed, and again after it ended; ends at once. From any thread."""

    def __init__(self, work: Callable[..., None], *given: Any) -> None:
        self._work, self._given = work, given
        self._changing = threading.Lock()  # it may be ended from another thread
        self._closed = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    @property
    def number(self) -> int | None:
        """The number of the process, where there is one."""
        process = self._process
        return process.pid if process is not None and process.is_alive() else None

    def pipe(self) -> Connection:
        """The pipe to the process, which is started where there is none; NoAnswer when the server ends."""
        with self._changing:
            if self._closed:
                raise NoAnswer("the server ends", why="it was told to", fix="start it again: onecard ui")
            if self._process is not None and not self._process.is_alive():
                self._end()
            if self._pipe is None:
                context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(target=self._work, args=(theirs, *self._given), daemon=True)
                with _deaf_to_ctrl_c():
                    self._process.start()
                theirs.close()
            return self._pipe

    def stop(self) -> None:
        """End it, whatever it is doing; the next question starts another."""
        with self._changing:
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None

    def close(self) -> None:
        """End it, for good."""
        self._closed = True
        self.stop()


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


class Bug:
    """What work that failed left behind, for the terminal."""

    def __init__(self, said: str) -> None:
        self.said = said

    def error(self) -> NoAnswer:
        return NoAnswer("this is a bug in onecard", why="the terminal shows where", fix="please report it", name="bug")


class Told(OnecardError):
    """An error on its way through a pipe: its words, whatever it was made of."""

    def __init__(self, problem: OnecardError) -> None:
        super().__init__(problem.what, why=problem.why, fix=problem.fix, name=problem.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _told, (self.what, self.why, self.fix, self.name)


def _told(what: str, why: str, fix: str, name: str) -> OnecardError:
    return OnecardError(what, why=why, fix=fix, name=name)
