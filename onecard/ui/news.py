"""What changed, for every page that listens."""

from __future__ import annotations

import threading

LIST = ""  # the list itself: a run came or went


class News:
    """Numbered changes: whoever comes back late gets each name once, however often it changed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._latest: dict[str, int] = {}  # the number of a name's last change

    @property
    def number(self) -> int:
        """The number of the last change."""
        return self._number

    def tell(self, name: str) -> None:
        """A run, by its id, or LIST has changed."""
        with self._changed:
            self._number += 1
            self._latest[name] = self._number
            self._changed.notify_all()

    def after(self, number: int, *, seconds: float) -> tuple[int, list[str]]:
        """The last number, and the names that changed after `number`; waits for one at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number, timeout=seconds)
            return self._number, [name for name, last in self._latest.items() if last > number]
