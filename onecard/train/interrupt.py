"""Ctrl-C, SIGTERM, a closed terminal: the first asks the loop to save and stop, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupt:
    """While entered, `requested` turns true at the first signal; a second raises KeyboardInterrupt."""

    NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has the last

    def __init__(self) -> None:
        self.requested = False
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

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
