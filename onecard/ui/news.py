"""What changed, for every page that listens."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

LIST = ""  # the list itself: a run came or went


class News:
    """Numbered changes: whoever comes back late gets each name once, however often it changed."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._number = 0
        self._latest: dict[str, int] = {}  # the number of a name's last change
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.ended = False

    @property
    def number(self) -> int:
        """The number of the last change."""
        return self._number

    def tell(self, name: str) -> None:
        """A run, by its id, or LIST has changed. From any thread."""
        with self._changing:
            self._number += 1
            self._latest[name] = self._number
        self._wake()

    def end(self) -> None:
        """Nobody waits any longer."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        with self._changing:
            waiting, self._waiting = self._waiting, {}
        for listener, loop in waiting.items():
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(listener.set)

    async def coming(self, number: int, *, seconds: float) -> tuple[int, list[str]]:
        """The last number, and the names that changed after `number`; waits for one at most `seconds`."""
        listener = asyncio.Event()
        with self._changing:
            if self._number <= number and not self.ended:
                self._waiting[listener] = asyncio.get_running_loop()
            else:
                listener.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await listener.wait()
        with self._changing:
            self._waiting.pop(listener, None)
            return self._number, [name for name, last in self._latest.items() if last > number]
