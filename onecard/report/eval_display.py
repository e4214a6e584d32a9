"""How far an evaluation is: nothing in the first seconds, then a bar with the time left, or a line now and then."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from onecard import units
from onecard.report.live_line import redraws

SHOWN_AFTER_SECONDS = 2.0
_LINE_SECONDS = 10.0  # between two lines, if no bar is drawn


class EvalDisplay:
    """Shows the share that is done. Use it in a `with`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet and not redraws(console)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, share: float | None, about: str = "") -> None:
        """`share` is what is done of the whole, from 0 to 1; None where the whole is not known."""
        now = time.monotonic()
        seconds = now - self._began
        if seconds < SHOWN_AFTER_SECONDS or share == 1:
            return
        line = progress_words(share, seconds, about)
        if redraws(self.console):
            if self._bar is None:
                columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
                self._bar = Progress(*columns, console=self.console, transient=True)
                self._task = self._bar.add_task("", total=None)
                self._bar.start()
            total = None if share is None else 1.0
            self._bar.update(self._task, description=line, total=total, completed=share or 0.0)
        elif not self.quiet and (now - self._shown_at > _LINE_SECONDS or self._shown_at == self._began):
            self._shown_at = now
            self.console.print(line, soft_wrap=True, markup=False)


def progress_words(share: float | None, seconds: float, about: str = "") -> str:
    """`12 %  3 min left  hellaswag`"""
    words = [units.duration(seconds)]
    if share:
        words = [f"{100 * share:.0f} %", f"{units.duration(seconds * (1 - share) / share)} left"]
    return "  ".join([*words, *([about] if about else [])])
