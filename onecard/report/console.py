"""The console everything is printed to: what users type is text, never markup, and a reader may leave early."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


class PlainConsole(Console):
    """A console that prints `[bold]` and `:x:` as they are, and goes on in silence when nobody reads any more."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def on_broken_pipe(self) -> None:
        """Write nowhere from here on; rich would end the program, and the exit code would not be the answer's."""
        discard(self.file.fileno())


def discard(descriptor: int) -> None:
    """Let what is still to be written to a descriptor go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
