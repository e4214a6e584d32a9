"""--profile FILE: a few steps under torch's profiler, as a trace that chrome://tracing and Perfetto open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule

SKIPPED, WARMED, RECORDED = 2, 1, 3  # steps: compiling and first allocations are not what a person wants to see


@contextmanager
def profiled_steps(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yields what to call after every step; the trace is written when the recorded steps are done."""
    if path is None:
        yield lambda: None
        return
    plan = schedule(wait=SKIPPED, warmup=WARMED, active=RECORDED, repeat=1)
    with profile(schedule=plan, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as profiler:
        yield profiler.step
