"""The next batches, prepared in the background while the card works on this one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterates over `source` in a thread, at most `depth` items ahead. NumPy releases the GIL while it copies.

    An error in the source is raised where its item would have come. Close it, or use it in a `with`.
    """

    def __init__(self, source: Iterator[T], *, depth: int = 2) -> None:
        assert depth >= 1
        self.waited_seconds = 0.0  # how long the consumer has waited, in total
        self._source = source
        self._depth = depth
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._done = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, name="onecard-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        started = time.perf_counter()
        with self._changed:
            while not self._ready and not self._done:
                self._changed.wait()
            self.waited_seconds += time.perf_counter() - started
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        """Stop the thread and drop what it had ready; the source makes at most one more item."""
        with self._changed:
            self._done = True
            self._error = None
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._source:
                with self._changed:
                    while len(self._ready) >= self._depth and not self._done:
                        self._changed.wait()
                    if self._done:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as problem:  # whatever it is, the consumer gets it
            error = problem
        with self._changed:
            if not self._done:
                self._error, self._done = error, True
            self._changed.notify_all()
