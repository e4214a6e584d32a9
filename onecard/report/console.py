"""The console for all output. It never reads text as markup, never lets text steer a terminal, and it survives a
reader that stops early."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable
from errno import EDQUOT, EIO, ENOSPC
from io import TextIOBase
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from onecard.visible import visible

_BROKEN = (ENOSPC, EDQUOT, EIO)  # the disk under a stream is full or has failed, or its terminal is gone


class PlainConsole(Console):
    """A console that prints `[bold]` and `:x:` unchanged, and prints nothing more once its reader is gone.

    Control characters in a text are shown, in a terminal and in a pipe: colours come from styles alone.
    Standard error never holds the answer, so its text is dropped if its disk is full.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)
        if self.stderr:
            outlive_disk(self)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, in pieces: here control characters become visible. Only rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        """Discard all further output. rich would end the program here, with the wrong exit code."""
        discard(self.file.fileno())


def wrapped(words: str, room: int) -> list[str]:
    """The words in lines of at most `room` columns; only a word that is longer has a longer line. Nothing is cut."""
    return textwrap.wrap(words, max(20, room), break_long_words=False, break_on_hyphens=False) or [""]


def print_wrapped(words: str, console: Console, *, label: str = "", label_style: str = "", style: str = "") -> None:
    """A label, and beside it words that wrap under themselves."""
    for number, line in enumerate(wrapped(words, console.width - len(label) - 1)):
        head = " " * len(label) if number else label
        console.print(Text.assemble((head, label_style), (line, style)), soft_wrap=True)


def outlive_disk(console: Console, on_failure: Callable[[OSError], None] = lambda _: None) -> None:
    """Make a console discard its output once its disk is full or broken; `on_failure` is then called once."""
    console.file = _Lasting(console.file, on_failure)  # type: ignore[assignment]  # as much of a file as is used


class _Lasting(TextIOBase):
    """A stream that cannot fail because of its disk."""

    def __init__(self, stream: Any, on_failure: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._on_failure = on_failure

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the stream's own, read-only here
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
        """Do nothing. The stream belongs to its owner, and its descriptor may be another file's by then."""

    def _give_up(self, problem: OSError) -> None:
        if problem.errno not in _BROKEN:
            raise problem
        discard(self._stream.fileno())  # its buffer is discarded too
        self._on_failure(problem)


def discard(descriptor: int) -> None:
    """Discard everything that is still written to a descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
