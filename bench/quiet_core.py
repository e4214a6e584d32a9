"""Time steps on a core that nobody else uses.

The cores of a rented machine are shared. A fixed loop of Python takes 1.5 ms on one and 3.5 on the next, and this
changes within a second. What waits for the host then takes up to 1.7 times as long, from one process to another. So
every step is timed between two such loops, on the core that ran them fastest. It counts only if both loops ran about
as fast as the fastest one. Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

QUIET = 1.3  # times the fastest loop; on a shared core it takes 1.6 to 2.4 times as long
ENOUGH = 5  # quiet steps; ten are wanted


def python_seconds() -> float:
    """Seconds of a fixed loop: what the processor gives a single thread just now."""
    start, found = time.perf_counter(), dict.fromkeys(range(64), 0)
    for number in range(20_000):
        found[number & 63] = (number * 7) ^ len(found)
    return time.perf_counter() - start


def stay_on(core: int) -> None:
    """Keep Python and autograd, which take turns, on one core; other threads may be anywhere else."""
    for task in Path("/proc/self/task").iterdir():
        try:
            if int(task.name) == os.getpid() or (task / "comm").read_text().startswith("pt_autograd"):
                os.sched_setaffinity(int(task.name), {core})
        except (ProcessLookupError, FileNotFoundError):  # it has ended in the meantime
            continue


@dataclass(frozen=True)
class Timed:
    """Steps timed one by one, and how slow the core was beside each."""

    steps: list[tuple[float, float]]  # seconds of the step, and of the slower of the two loops around it
    fastest: float  # seconds of the fastest loop on any core

    @property
    def quiet(self) -> list[float]:
        """Seconds of the undisturbed steps."""
        return [seconds for seconds, loop in self.steps if loop <= QUIET * self.fastest]

    @property
    def seconds(self) -> float | None:
        """Their median in seconds; None if there are too few."""
        return median(self.quiet) if len(self.quiet) >= ENOUGH else None

    @property
    def text(self) -> str:
        """All steps as a cell of a table, to be judged again: `0.17402:0.00163 0.17377:0.00161`."""
        return " ".join(f"{seconds:.5f}:{loop:.5f}" for seconds, loop in self.steps)


def parsed(text: str, fastest: float) -> Timed:
    """Steps as `Timed.text` wrote them."""
    pairs = (step.split(":") for step in text.split())
    return Timed([(float(seconds), float(loop)) for seconds, loop in pairs], fastest)


def time_quietly(step: Callable[[], float], *, wanted: int = 10, limit_seconds: float = 8.0) -> Timed:
    """Time steps until enough were quiet or the time is up; move to another core when they were not."""
    cores = os.sched_getaffinity(0)
    end = time.perf_counter() + limit_seconds
    timed = Timed([], _move_to_the_quietest(cores))
    step()  # warms the caches of the new core
    while len(timed.quiet) < wanted and time.perf_counter() < end:
        before, seconds, after = python_seconds(), step(), python_seconds()
        timed = Timed([*timed.steps, (seconds, max(before, after))], min(timed.fastest, before, after))
        if max(before, after) > QUIET * timed.fastest:
            timed = Timed(timed.steps, min(timed.fastest, _move_to_the_quietest(cores)))
            step()
    return timed


def _move_to_the_quietest(cores: set[int]) -> float:
    """Stay on the core that runs the loop fastest; returns its seconds there."""

    def on(core: int) -> float:
        os.sched_setaffinity(0, {core})
        return max(python_seconds() for _ in range(3))

    seconds, core = min((on(core), core) for core in cores)
    stay_on(core)
    return seconds
