"""The console everything is printed to: what users type is text, never markup, and a reader may leave early."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EDQUOT, EIO, ENOSPC
from io import TextIOBase
from typing import Any

from rich.console import Console

_BROKEN = (ENOSPC, EDQUOT, EIO)  # the disk under a stream is full or has failed, or its terminal is gone


class PlainConsole(Console):
    """A console that prints `[bold]` and `:x:` as they are, and goes on in silence when nobody reads any more.

    Talk, on standard error, is no answer: where its disk is full it is dropped.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)
        if self.stderr:
            outlive_disk(self)

    def on_broken_pipe(self) -> None:
        """Write nowhere from here on; rich would end the program, and the exit code would not be the answer's."""
        discard(self.file.fileno())


def outlive_disk(console: Console, on_failure: Callable[[OSError], None] = lambda _: None) -> None:
    """Let a console write nowhere once its disk is full or broken; `on_failure` hears of that, once."""
    console.file = _Lasting(console.file, on_failure)  # type: ignore[assignment]  # as much of a file as is used


class _Lasting(TextIOBase):
    """A stream that cannot fail because of its disk."""

    def __init__(self, stream: Any, on_failure: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._on_failure = on_failure

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of the stream, and never written to
        return str(self._stream.encoding)

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as problem:
            self._give_up(problem)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as problem:
            self._give_up(problem)

    def close(self) -> None:
        """Nothing: the stream is its owner's, whose descriptor may be another file's when this is collected."""

    def _give_up(self, problem: OSError) -> None:
        if problem.errno not in _BROKEN:
            raise problem
        discard(self._stream.fileno())  # what is in its buffer goes there too
        self._on_failure(problem)


def discard(descriptor: int) -> None:
    """Let what is still to be written to a descriptor go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
