"""Ctrl-C, SIGTERM, a closed terminal ask the loop to save and stop; Ctrl-C after that stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Stopped(Exception):
    """A signal came, and what was under way has been left."""


class Interrupt:
    """While entered, `requested` turns true at the first signal; Ctrl-C after that raises KeyboardInterrupt.

    Only a person's Ctrl-C does: a terminal that is closed sends SIGHUP twice, from the shell and from the kernel, and
    what it says is to be saved.

    Where signals come `repeated`, as torchrun does with those that a terminal has sent already, a second one says
    nothing new.

    `on_first` is called at once, inside the signal handler: between any two instructions of the program, so it must not
    touch what these may be in the middle of, such as a buffered stream.
    """

    NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has the last

    def __init__(self, on_first: Callable[[], None] = lambda: None, *, repeated: bool = False) -> None:
        self.requested = False
        self._repeated = repeated
        self._on_first = on_first
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread handle signals
            numbers = [getattr(signal, name) for name in self.NAMES if hasattr(signal, name)]
            heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
            self._before = {number: signal.signal(number, self._asked) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            self._on_first()
        elif number == signal.SIGINT and not self._repeated:
            raise KeyboardInterrupt
