"""Reads the card's sensors while a run trains, in a thread of its own: NVML may be slow, fail, or never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Self

import torch

from onecard.machine import CardSensors, sensor_readings

READ_SECONDS = 5.0  # between readings, of up to MANY ranks
MANY = 8  # more are read less often: all ranks stop for a moment to give theirs to the first
SETTLED_SECONDS = 1.0  # of updates before a reading counts: a card's power is the mean of about a second
LOOK_SECONDS = 0.25  # between looks at whether the run updates again


class CardWatch:
    """The newest reading of a card that was taken while updates ran; use it in a `with`.

    No reading is taken while the run evaluates, saves or compiles: the clocks of a card that waits say nothing. Of a
    card that does not answer, or no longer, there are none. The training thread never waits for NVML: it only sets and
    reads values here.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        ranks: int = 1,
        readings: Callable[[int], Generator[CardSensors]] = sensor_readings,
        read_seconds: float = READ_SECONDS,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        self._readings = partial(readings, device.index or 0) if device.type == "cuda" else None
        self.read_seconds = read_seconds * max(1.0, ranks / MANY)
        self._settled_seconds = settled_seconds
        self._updates_since: float | None = None  # without a pause
        self._newest: CardSensors | None = None
        self._left = threading.Event()
        self.thread: threading.Thread | None = None  # where there is a card

    def __enter__(self) -> Self:
        if self._readings:
            self.thread = threading.Thread(target=self._read, daemon=True, name="card")
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()  # the thread is not waited for: the NVML of a card that is lost may hang

    def updates(self) -> None:
        """The run updates from here on."""
        if self._updates_since is None:
            self._updates_since = time.monotonic()

    def pauses(self) -> None:
        """The run does something else, until it `updates` again."""
        self._updates_since = None

    @property
    def has_reading(self) -> bool:
        return self._newest is not None

    def take(self) -> CardSensors | None:
        """The newest reading, once."""
        newest, self._newest = self._newest, None
        return newest

    def _read(self) -> None:
        assert self._readings
        with suppress(Exception):  # whatever a driver does, training goes on
            readings = self._readings()
            while not self._left.wait(LOOK_SECONDS):
                since = self._updates_since
                if since is None or time.monotonic() < since + self._settled_seconds:
                    continue
                found = next(readings, None)
                if found is None:
                    return
                if self._updates_since == since:  # it updated all the while
                    self._newest = found
                    self._left.wait(self.read_seconds)
            readings.close()
