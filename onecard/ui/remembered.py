"""Answers that many pages ask for at once are made once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

MOST = 16  # answers, of some 200 KB


class Remembered:
    """The last answers. A file that grows all the time is read again only after as long as the last reading took."""

    def __init__(self) -> None:
        self._making: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()  # one at a time for each key
        self._kept: OrderedDict[Hashable, tuple[Any, float, float, Any]] = OrderedDict()

    async def answer(self, key: Hashable, stamp: Callable[[], Any], make: Callable[[], Awaitable[Any]]) -> Any:
        """The answer for `key` as it is now: the one that was made, if `stamp` says that nothing has changed since."""
        async with self._making.setdefault(key, asyncio.Lock()):
            if kept := self._kept.pop(key, None):
                before, made_at, took, made = kept
                if before == stamp():
                    self._kept[key] = kept
                    return made
                await asyncio.sleep(max(0.0, min(1.0, made_at + took - time.monotonic())))
            now, began = stamp(), time.monotonic()
            made = await make()
            self._kept[key] = now, time.monotonic(), time.monotonic() - began, made
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
            return made
