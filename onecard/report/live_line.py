"""The live line of a run: always the step and the time left, then the whole figures the terminal has room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onecard import units

APART = "  "  # between two figures
# What a narrow terminal leaves out, in this order; the step is always there.
GIVEN_UP = (
    "bar",
    "saved",
    "card",
    "planned",
    "lr",
    "mfu",
    "waiting",
    "memory",
    "speed",
    "val",
    "loss",
    "doing",
    "left",
)
BAR_CELLS, LEAST_BAR_CELLS = 24, 8
LEFT_CELLS = len("119 min left")  # a fixed width, so that what follows does not move as the time runs down


def redraws(console: Console) -> bool:
    """Whether a line can be redrawn: on a terminal that supports it."""
    return console.is_terminal and not console.is_dumb_terminal


class LiveLine(Progress):
    """Progress on one line; the field `figures` of a task has its parts by name, each beginning with its separator."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            yield live_line(task, width=self.console.width)


def live_line(task: Task, *, width: int) -> Table:
    """The line of a task, at most `width` columns: `1234/4750  ━━━━━━━━  93 min left  loss 3.8912  val 3.9012`."""
    total = int(task.total or 0)
    seconds = task.time_remaining
    left = f"{'?' if seconds is None else units.duration(seconds)} left"
    pieces = {
        "step": f"{int(task.completed):>{len(str(total))}}/{total}",
        "bar": APART + " " * LEAST_BAR_CELLS,
        "left": APART + left.ljust(LEFT_CELLS),
        **task.fields["figures"],
    }
    kept = fitted(pieces, width=width)
    line = Table.grid()
    cells: list[RenderableType] = [Text(kept.pop("step"), style="bold")]
    if space := kept.pop("bar", ""):
        room = width - len(_joined(pieces)) + len(space) - len(APART)
        cells += [APART, ProgressBar(total=total, completed=task.completed, width=min(BAR_CELLS, room))]
    for _ in range(len(cells) + 1):
        line.add_column(no_wrap=True)
    line.add_row(*cells, _joined(kept))
    return line


def fitted(pieces: Mapping[str, str], *, width: int) -> dict[str, str]:
    """The pieces that fit on a line of `width` columns; none of them is cut."""
    kept = dict(pieces)
    for name in GIVEN_UP:
        if len(_joined(kept)) <= width:
            break
        kept.pop(name, None)
    return kept


def _joined(pieces: Mapping[str, str]) -> str:
    return "".join(pieces.values()).rstrip()
