"""A run as it goes: a live line on a terminal, plain lines elsewhere, nanoGPT's lines where asked for."""

from __future__ import annotations

from math import isfinite
from typing import Self

from rich.console import Console
from rich.progress import TaskID
from rich.text import Text

from onecard import units
from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, matching_cards
from onecard.plan.memory.predict import context_of_onecard
from onecard.report.live_line import APART, LiveLine, redraws
from onecard.runs.records import Checkpoint, End, Eval, FindingRecord, Oom, Record, Start, Step

PARTED = 0.03  # of the planned memory
SETTLED_STEP = 3  # compiled, recorded, the optimizer's state made


class TrainingDisplay:
    """Shows each record of a run; use it in a `with`.

    `timed_from` is the step it was imported at: how long the updates before took is not known.
    """

    def __init__(self, config: RunConfig, console: Console, *, timed_from: int = 0) -> None:
        self.config = config
        self.timed_from = timed_from
        self.console = console
        self.nanogpt = config.log_style == "nanogpt"
        self.live = redraws(console) and config.log_style == "auto"
        self._progress: LiveLine | None = None
        self._task = TaskID(0)
        self._last: Step | None = None  # the update that the live line shows
        self._val = ""
        self._saved = ""
        self._planned_bytes: int | None = None
        self._card: Card | None = None
        self._parted = False  # whether it was said that measured and planned memory part

    def __enter__(self) -> Self:
        if self.live:
            self._progress = LiveLine(console=self.console, speed_estimate_period=60)
            starting = {"loss": f"{APART}starting"}
            self._task = self._progress.add_task("", total=self.config.max_iters, figures=starting)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, record: Record) -> None:
        match record:
            case Start():
                self._start(record)
            case Step():
                self._step(record)
            case Eval():
                self._eval(record)
            case Checkpoint() if not self.nanogpt:
                self._saved = f"saved at {record.step:,}"
                self._say(f"saved {record.path} ({record.reason}, {record.seconds or 0:.1f} s)", style="dim")
                self._redraw()
            case Oom():
                self._oom(record)
            case FindingRecord(finding=found):
                self._say(f"{found.severity}: {found.what}; {found.fix}  [{found.rule}]", style="yellow")
            case End():
                self._end(record)

    def _start(self, record: Start) -> None:
        where = record.card or record.device
        self._planned_bytes = record.predicted_process_bytes
        known = matching_cards(record.card) if record.card else ()
        self._card = known[0] if known else None
        begun = f"resumed from {record.resumed_from}" if record.resumed_from else "from the beginning"
        if record.resumed_from and not record.step:
            begun = f"began from {self.config.init_from}"  # weights from elsewhere are the checkpoint of step 0
        if not self.nanogpt:
            self._say(f"training on {where}, {begun}, to step {self.config.max_iters:,}")
        if self._progress:
            self._progress.update(self._task, completed=record.step)

    def _step(self, record: Step) -> None:
        self._compare_with_plan(record)
        self._last = record
        self._redraw()
        if record.step % self.config.log_interval and record.step != self.config.max_iters:
            return
        if self.nanogpt:
            share = -100.0 if record.mfu is None else 100 * record.mfu
            milliseconds = 1000 * (record.seconds or 0)
            self._say(f"iter {record.step}: loss {record.loss:.4f}, time {milliseconds:.2f}ms, mfu {share:.2f}%")
        elif not self._progress:
            left = (self.config.max_iters - record.step) * (record.seconds or 0)
            figures = "".join(self._figures(record).values())
            self._say(f"step {record.step:,}/{self.config.max_iters:,}{figures}{APART}{units.duration(left)} left")

    def _redraw(self) -> None:
        """Bring the live line up to date: its last update with the last evaluation and the last save."""
        if self._progress and self._last:
            self._progress.update(self._task, completed=self._last.step, figures=self._figures(self._last))

    def _figures(self, record: Step) -> dict[str, str]:
        """Words by name, as they stand on a line; each brings what parts it from the one before."""
        figures = {"loss": f"{APART}loss {record.loss:.4f}"}
        if self._val:
            figures["val"] = APART + self._val
        if record.lr is not None:
            figures["lr"] = f"{APART}lr {record.lr:.1e}"
        if record.tokens_per_second:
            figures["speed"] = f"{APART}{record.tokens_per_second / 1000:,.1f}k tokens/s"
        if record.mfu is not None:
            figures["mfu"] = f"{APART}MFU {record.mfu:.0%}"
        if (used := self._used_bytes(record)) is not None:
            figures["memory"] = f"{APART}VRAM {units.gib(used)}"
            if self._planned_bytes:
                figures["planned"] = f" of {units.gib(self._planned_bytes)} planned"
            if self._card:
                figures["card"] = f", card {units.gib(self._card.vram_bytes)}"
        if record.data_wait_seconds and record.seconds and record.data_wait_seconds > 0.02 * record.seconds:
            figures["waiting"] = f"{APART}waiting for data {record.data_wait_seconds / record.seconds:.0%}"
        if self._saved and self._progress:
            figures["saved"] = APART + self._saved
        return figures

    def _used_bytes(self, record: Step) -> int | None:
        """What the driver shows for the process: the allocator's highest mark and the context."""
        if record.reserved_bytes is None:
            return None
        return record.reserved_bytes + (context_of_onecard(self.config, self._card) if self._card else 0)

    def _compare_with_plan(self, record: Step) -> None:
        """Say once if memory is not what was planned; from the third update on nothing new is allocated."""
        used = self._used_bytes(record)
        if self._parted or used is None or not self._planned_bytes or record.step < SETTLED_STEP or self.nanogpt:
            return
        off = used / self._planned_bytes - 1
        if abs(off) > PARTED:
            self._parted = True
            self._say(
                f"memory is {off:+.1%} off the plan: {units.mib(used)} instead of {units.mib(self._planned_bytes)}; "
                "please report it with the run's config.json",
                style="yellow",
            )

    def _eval(self, record: Eval) -> None:
        if record.val_loss is None or record.train_loss is None:
            return
        self._val = f"val {record.val_loss:.4f}"
        self._redraw()
        if self.nanogpt:
            self._say(f"step {record.step}: train loss {record.train_loss:.4f}, val loss {record.val_loss:.4f}")
            return
        self._say(
            f"step {record.step:,}: train {_with_error(record.train_loss, record.train_loss_error)}, "
            f"val {_with_error(record.val_loss, record.val_loss_error)} "
            f"({record.tokens_read or 0:,} tokens, {record.seconds or 0:.1f} s)",
            style="bold",
        )

    def _oom(self, record: Oom) -> None:
        self._planned_bytes = None  # what was planned is not what runs from here on
        where = "training" if record.where == "train" else "evaluation"
        after = f"now {record.batch_size_after}" if record.batch_size_after else "nothing smaller is left"
        self._say(
            f"out of memory in {where} at step {record.step:,} with batch {record.batch_size_before}: {after}; "
            "tokens per update stay",
            style="yellow",
        )

    def _end(self, record: End) -> None:
        best = f", best val loss {record.best_val_loss:.4f}" if record.best_val_loss is not None else ""
        tokens = f"{units.count(record.tokens or 0)} tokens"
        if self.timed_from:
            here = (record.step - self.timed_from) * self.config.tokens_per_step
            tokens += f", {units.count(here)} of them since the import"
        if not self.nanogpt:
            self._say(
                f"{record.reason} at step {record.step:,}: {tokens} in {units.duration(record.seconds or 0)} "
                f"of training{best}",
                style="bold",
            )

    def _say(self, words: str, *, style: str = "") -> None:
        self.console.print(Text(words, style=style), soft_wrap=True)


def _with_error(loss: float, error: float | None) -> str:
    """A loss with its standard error, which one sequence does not have."""
    return f"{loss:.4f}" + (f" ± {error:.4f}" if error is not None and isfinite(error) else "")
