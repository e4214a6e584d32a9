"""What a call costs in a function with many local variables: CPython keeps frames in chunks of 2,048 slots.

    python bench/frame_chunks.py

If a function's frame nearly fills a thread's first chunk, everything it calls gets a frame in a new chunk, which is
mapped for the call and unmapped after it. A compiled backward pass is such a function (docs/explain/speed.md).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

CALLS = 2_000


def function_of(slots: int) -> Callable[[], float]:
    """A function with that many local variables; it returns the seconds of one call of an empty function."""
    names = "".join(f"    v{number} = 0\n" for number in range(slots))
    source = f"def empty(): pass\ndef function():\n{names}    start = clock()\n" + "    empty()\n" * CALLS
    space: dict[str, Callable[[], float]] = {"clock": time.perf_counter}
    exec(source + f"    return (clock() - start) / {CALLS}\n", space)
    return space["function"]


def measure(found: list[tuple[int, float]]) -> None:
    for slots in range(1_600, 2_100, 10):
        function = function_of(slots)
        found.append((slots, min(function() for _ in range(5))))


def main() -> None:
    found: list[tuple[int, float]] = []
    thread = threading.Thread(target=measure, args=(found,))  # an empty chunk, as autograd's thread has
    thread.start()
    thread.join()
    print(f"Python {sys.version.split()[0]}")
    for slots, seconds in found:
        print(f"{slots:,} local variables: {1e6 * seconds:6.2f} µs a call")


if __name__ == "__main__":
    main()
