"""--profile FILE: a few steps under torch's profiler, as a trace that chrome://tracing and Perfetto open."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from torch.profiler import profile, schedule

SKIPPED, WARMED, RECORDED = 2, 1, 3  # steps: compiling and first allocations are not what a person wants to see


class Profiling:
    """While entered, a few steps are recorded and their trace is written; without a path it does nothing.

    A trace that cannot be written ends no training: `missing` says why it is not there.
    """

    def __init__(self, path: Path | None) -> None:
        self.missing: str | None = f"the run had fewer than {SKIPPED + WARMED + 1} updates" if path else None
        self._path = path
        self._profiler: profile | None = None
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        if self._path:
            steps = schedule(wait=SKIPPED, warmup=WARMED, active=RECORDED, repeat=1)
            self._profiler = self._entered.enter_context(profile(schedule=steps, on_trace_ready=self._write))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def after_step(self) -> None:
        """To be called after every step; the trace is written after the last that is recorded."""
        if self._profiler:
            self._profiler.step()

    def _write(self, done: profile) -> None:
        assert self._path
        try:
            with tempfile.TemporaryDirectory() as folder:  # torch does not say whether it could write
                trace = Path(folder) / f"trace{self._path.suffix}"  # .gz is packed
                done.export_chrome_trace(str(trace))
                shutil.copyfile(trace, self._path)
            self.missing = None
        except OSError as problem:
            self.missing = problem.strerror or str(problem)
