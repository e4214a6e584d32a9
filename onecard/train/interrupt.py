"""Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupt:
    """While entered, `requested` turns true at the first signal; a second raises KeyboardInterrupt."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread handle signals
            self._before = {number: signal.signal(number, self._asked) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
