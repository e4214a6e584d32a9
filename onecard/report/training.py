"""A run while it trains: a live line on a terminal, plain lines elsewhere, nanoGPT's lines if asked for."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from math import isfinite
from textwrap import indent
from typing import Self

from rich.console import Console
from rich.progress import TaskID
from rich.text import Text

from onecard import units
from onecard.config.schema import RunConfig
from onecard.doctor.card_readings import slowed_in_words
from onecard.models.evaluation import evaluations_after
from onecard.plan.cards import Card, matching_cards
from onecard.plan.memory.predict import context_of_onecard
from onecard.report.live_line import APART, LiveLine, redraws
from onecard.runs.records import CardReading, Checkpoint, End, Eval, FindingRecord, Oom, Record, Sample, Start, Step
from onecard.visible import visible

PARTED = 0.03  # measured memory off the planned, as a share
SETTLED_STEP = 3  # by then everything is compiled, recorded and allocated
REMEMBERED_READINGS = 20_000  # of the card: a day
RECENT_STEPS = 20  # that the time left is estimated from
QUIET_SECONDS = 10.0  # without a line, after which one says what is being done
LOOK_SECONDS = 1.0  # between looks at how long it was quiet: one batch alone may take a minute
SHOWN_AFTER_SECONDS = 1.0  # without a record, after which the live line says it: in a fast run it would only flicker


class TrainingDisplay:
    """Shows each record of a run; use it in a `with`.

    `timed_from` is the step at which the run was imported: how long the updates before it took is not known.
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
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)  # seconds of updates, without this process's first
        self._eval_seconds = 0.0  # of the last evaluation
        self._said_at = self._recorded_at = time.monotonic()  # of the last line, and of the last record
        self._step_said = False  # whether a line of an update was printed
        self._started_at = 0
        self._doing: tuple[str, int, int] | None = None  # what is being done, batches done, batches in all
        self._speaking = threading.Lock()
        self._left = threading.Event()
        self._val = ""
        self._saved = ""
        self._planned_bytes: int | None = None
        self._card: Card | None = None
        self._cards: deque[CardReading] = deque(maxlen=REMEMBERED_READINGS)
        self._parted = False  # whether it was said that measured and planned memory differ

    def __enter__(self) -> Self:
        if self.live:
            self._progress = LiveLine(console=self.console, speed_estimate_period=60)
            starting = {"loss": f"{APART}starting"}
            self._task = self._progress.add_task("", total=self.config.max_iters, figures=starting)
            self._progress.start()
        elif not self.nanogpt:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._progress:
            self._progress.stop()

    def __call__(self, record: Record) -> None:
        if isinstance(record, CardReading):
            self._cards.append(record)
            return
        self._recorded_at = time.monotonic()
        self._doing = None
        match record:
            case Start():
                self._start(record)
            case Step():
                self._step(record)
            case Eval():
                self._eval(record)
            case Sample() if not self.nanogpt:
                text = indent(visible(record.text).strip("\n"), "    ", lambda _: True)
                self._say(f"step {record.step:,}, a text of the model:\n{text}")
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

    def progress(self, doing: str, done: int, total: int) -> None:
        """Show the batches done inside an evaluation ("evaluating") or an update ("updating").

        A pipe gets a line only where there was none for ten seconds: in evaluations, and before the first update is
        printed. nanoGPT's style has no such lines.
        """
        self._doing = (doing, done, total)
        if not self._progress:
            self._say_if_quiet()
        elif self._last is None or time.monotonic() - self._recorded_at >= SHOWN_AFTER_SECONDS:
            self._draw(f"{doing} {done} of {total}" if total > 1 else doing)

    def _look(self) -> None:
        """In a thread of its own: say what is being done whenever it was quiet for long."""
        while not self._left.wait(LOOK_SECONDS):
            self._say_if_quiet()

    def _say_if_quiet(self) -> None:
        with self._speaking:
            if self.nanogpt or not self._doing or time.monotonic() - self._said_at < QUIET_SECONDS:
                return
            doing, done, total = self._doing
            step = self._last.step if self._last else self._started_at
            if doing == "evaluating":
                self._say(f"step {step:,}: evaluating, {done} of {total} batches done")
            elif not self._step_said:
                parts = f": {done} of {total} micro-batches done" if total > 1 else ""
                self._say(f"update {step + 1:,} of {self.config.max_iters:,}{parts}")

    def _start(self, record: Start) -> None:
        self._started_at = record.step
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
        if self._last and record.seconds is not None:  # the first update also compiles and allocates
            self._recent.append(record.seconds)
        self._last = record
        self._redraw()
        if record.step % self.config.log_interval and record.step != self.config.max_iters:
            return
        if self.nanogpt:
            share = -100.0 if record.mfu is None else 100 * record.mfu
            milliseconds = 1000 * (record.seconds or 0)
            self._say(f"iter {record.step}: loss {record.loss:.4f}, time {milliseconds:.2f}ms, mfu {share:.2f}%")
        elif not self._progress:
            figures = "".join(self._figures(record).values())
            left = self._seconds_left(record.step)
            shown = (
                "" if left is None or record.step == self.config.max_iters else f"{APART}{units.duration(left)} left"
            )
            self._step_said = True
            self._say(f"step {record.step:,}/{self.config.max_iters:,}{figures}{shown}")

    def _seconds_left(self, step: int) -> float | None:
        """Time to the end at the median speed of recent updates, evaluations included; None before there are two."""
        if len(self._recent) < 2:
            return None
        updates = (self.config.max_iters - step) * statistics.median(self._recent)
        return updates + evaluations_after(self.config, step) * self._eval_seconds

    def _redraw(self) -> None:
        """Bring the live line up to date: its last update with the last evaluation and the last save."""
        if self._progress and self._last:
            self._progress.update(self._task, completed=self._last.step, figures=self._figures(self._last))

    def _draw(self, doing: str) -> None:
        """The live line with what is being done in front of the last update's figures."""
        if self._progress:
            known = self._figures(self._last) if self._last else {}
            self._progress.update(self._task, figures={"doing": APART + doing, **known})

    def _figures(self, record: Step) -> dict[str, str]:
        """The parts of a line by name, in order; each begins with its separator."""
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
        """Say once if memory is not as planned; from the third update on nothing new is allocated."""
        used = self._used_bytes(record)
        if self._parted or used is None or not self._planned_bytes or record.step < SETTLED_STEP or self.nanogpt:
            return
        off = used / self._planned_bytes - 1
        if abs(off) > PARTED:
            self._parted = True
            self._say(
                f"memory is {off:+.1%} off the plan: {units.mib(used)} instead of {units.mib(self._planned_bytes)}; "
                "please report this with the run's config.json",
                style="yellow",
            )

    def _eval(self, record: Eval) -> None:
        if record.val_loss is None or record.train_loss is None:
            return
        self._val = f"val {record.val_loss:.4f}"
        self._eval_seconds = record.seconds or 0.0
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
        self._planned_bytes = None  # the plan was for the larger micro-batch
        where = "training" if record.where == "train" else "evaluation"
        after = (
            f"continuing with {record.batch_size_after}, and the same tokens per update"
            if record.batch_size_after
            else "there is no smaller one"
        )
        if record.where == "train" and record.batch_size_after == 1 and self.config.grad_checkpoint != "full":
            after += "; --resume with --grad_checkpoint=full needs less memory"
        self._say(
            f"out of memory in {where} at step {record.step:,} with batch {record.batch_size_before}: {after}",
            style="yellow",
        )

    def _end(self, record: End) -> None:
        best = f", best val loss {record.best_val_loss:.4f}" if record.best_val_loss is not None else ""
        tokens = f"{units.count(record.tokens or 0)} tokens"
        if self.timed_from:
            here = (record.step - self.timed_from) * self.config.tokens_per_step
            tokens += f", {units.count(here)} of them since the import"
        reason = str(record.reason)
        if reason == "stop_after_worse":
            reason = f"stopped after {units.things(self.config.stop_after_worse, 'evaluation')} worse than the best,"
        if not self.nanogpt:
            self._say(
                f"{reason} at step {record.step:,}: {tokens} in {units.duration(record.seconds or 0)} "
                f"of training{best}",
                style="bold",
            )
            if slowed := slowed_in_words(self._cards):
                self._say(f"{slowed}: onecard doctor says what it costs")

    def _say(self, words: str, *, style: str = "") -> None:
        self._said_at = time.monotonic()
        self.console.print(Text(words, style=style), soft_wrap=True)


def _with_error(loss: float, error: float | None) -> str:
    """A loss with its standard error, if that is known: a single sequence has none."""
    return f"{loss:.4f}" + (f" ± {error:.4f}" if error is not None and isfinite(error) else "")
