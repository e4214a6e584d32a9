"""onecard tune: what this machine can do, and the fastest way to run a config on it, measured in a minute or two."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType, check_writable, without_config, write_text
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, json_option, needs_torch
from onecard.cli.signals import INTERRUPTED
from onecard.cli.worker import OutOfTime, worker_lines
from onecard.errors import ConfigError, MachineError, OnecardError
from onecard.inputs.before_run import check_data, check_keys
from onecard.inputs.config import config_as_typed, open_data, with_vocabulary

if TYPE_CHECKING:
    from rich.console import Console

    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.plan.calibration import TimedRun
    from onecard.plan.place import Place
    from onecard.plan.tuning import Tried, Way
    from onecard.report.tune import LiveTable
    from onecard.runs.measured import Measured
    from onecard.runs.tuned import Tuned

MINUTES = 1.5
WARM_UP, MOST_UPDATES = 3, 60  # of each way: compiling, recording and settling are not timed
MACHINE_SHARE, WAY_SHARE = 0.28, 0.03  # of the time: the machine itself, and the timed updates of each way
ON_CPU_SHARE = 0.05  # a processor has fewer figures
LONGEST_MACHINE_SECONDS = 25.0  # 20 of them under load: clock and power have settled by then
SHORT_STEP_SECONDS = 0.8  # an update predicted to be longer is timed with fewer micro-batches


@click.command(cls=KeyCommand, short_help="Measure the fastest way to run a config here, in a minute or two.")
@click.argument("config", required=False, type=PathType())
@click.option(
    "--minutes",
    default=MINUTES,
    type=click.FloatRange(min=0, min_open=True, max=24 * 60),
    metavar="M",
    show_default=True,
    help="The time it may take.",
)
@click.option("--write", type=PathType(), metavar="FILE", help="Save the config with the fastest settings.")
@click.option("--share", type=PathType(), metavar="FILE", help="Save what was measured, to send it: nothing personal.")
@json_option
@click.pass_obj
def tune(
    flags: list[Flag], /, config: str | None, minutes: float, write: str | None, share: str | None, as_json: bool
) -> int:
    """\b
    Example:
      onecard tune train_fineweb.py --memory_limit=12GiB --write tuned.py

    Measures this machine, then a handful of ways to run CONFIG, and names the fastest: what to type, or a config file.
    What it measures is kept: later plans for this machine's card start from it, with narrower ranges.

    Every way has the same tokens per update and learns the same. It runs in a process of its own: one that runs out of
    memory spoils nothing. On a card: micro-batch, recomputation, chunks of the loss, compiled or not. Without one:
    threads and micro-batch. The clock that counts is this machine's; the plan's prediction stands beside it.
    """
    from onecard.data.home import home_note
    from onecard.report.messages import print_error, print_findings, print_warnings
    from onecard.runs.tuned import Tuned

    needs_torch("tuning trains a model for a moment")
    for option, path in (("--write", write), ("--share", share)):
        if path:
            _check_new(Path(path), option=option)
    resolved = config_as_typed(config, flags, otherwise=without_config())
    check_keys(resolved.config)
    dataset = open_data(resolved.config)
    asked = with_vocabulary(resolved, dataset.model_vocab_size)
    talk = console(stderr=True)
    print_warnings([*resolved.warnings, *filter(None, [home_note(os.environ)])], talk)
    import onecard.train  # noqa: F401  # a broken torch is reported here, not by each measurement

    print_findings(check_data(asked, dataset), talk)
    tuned = Tuned(asked=asked)
    search = Search(found=tuned, seconds=60 * minutes, until=time.monotonic() + 60 * minutes)
    stopped: KeyboardInterrupt | OnecardError | None = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: show what has been measured
    try:
        search.run()
    except (KeyboardInterrupt, OnecardError) as problem:
        stopped = problem
    if not tuned.best:
        raise stopped or _nothing_ran(tuned)
    try:
        search.keep()
    except OnecardError as problem:
        stopped = stopped or problem
    _tell(tuned, resolved, write=write, as_json=as_json)
    if share:
        _share(tuned, Path(share), talk)
    if isinstance(stopped, OnecardError):
        print_error(stopped, talk)  # printed, not raised: with --json, stdout already has its one object
        return stopped.exit_code
    if stopped:
        talk.print("interrupted: this is the best of what was measured so far", soft_wrap=True)
    return INTERRUPTED if stopped else 0


@dataclass
class Search:
    """One run of the command, which fills in what it finds."""

    found: Tuned
    until: float  # on the monotonic clock: when the time is over
    seconds: float
    place: Place | None = None

    @property
    def left_seconds(self) -> float:
        return self.until - time.monotonic()

    def run(self) -> None:
        """Measure the machine, then every way that may win while there is time."""
        from onecard.report.tune import live_table

        with live_table(self.found, console(stderr=True), until=self.until) as table:
            table.say("measuring this machine")
            self._measure_machine()
            self.found.ways = self._planned()
            for number, way in enumerate(self.found.ways):
                table.say(f"measuring way {number + 1} of {len(self.found.ways)}")
                self._try(way, table)

    def _measure_machine(self) -> None:
        from onecard.inputs.preflight import place_of_run
        from onecard.machine import usable_threads
        from onecard.plan.tuning import sizes_near

        self.place = place_of_run(self.found.asked)
        most = usable_threads()
        told = "OMP_NUM_THREADS" in os.environ
        job = {
            "config": self.found.asked.model_dump(),
            "seconds": min(LONGEST_MACHINE_SECONDS, (MACHINE_SHARE if self.place else ON_CPU_SHARE) * self.seconds),
            "threads": [most] if told else sorted({most, max(1, most // 2), 1}, reverse=True),
            "sizes": sizes_near(self.found.asked),
        }
        with closing(worker_lines("onecard.train.measure_machine", job, "onecard", self.found.asked)) as lines:
            (self.found.machine,) = lines
        if self.found.machine["device"] != "cuda":
            self.place = None
        self.found.available_bytes = self.place.available_bytes_for(self.found.asked) if self.place else None

    def _planned(self) -> list[Way]:
        """The ways to try, the config as given first where it may fit."""
        from onecard.plan.tuning import ways_on_card, ways_on_cpu, ways_untold

        asked, machine = self.found.asked, self.found.machine
        if self.found.is_on_cpu:
            from onecard.train.cpu import SHARE

            rates = {(each["threads"], each["batch_size"]): each["flops_per_second"] for each in machine["products"]}
            return ways_on_cpu(asked, rates, share=SHARE.likely)
        if self.place:
            return ways_on_card(asked, self.place.card, self.place.available_bytes_for(asked))
        return ways_untold(asked)

    def _try(self, way: Way, table: LiveTable) -> None:
        """Measure a way, unless it cannot win or there is no time for it."""
        from onecard.plan.tuning import DOUBT_ON_CARD, DOUBT_ON_CPU, Tried, cannot_win

        doubt = DOUBT_ON_CPU if self.found.is_on_cpu else DOUBT_ON_CARD
        if self.found.best and cannot_win(way, self.found.tried, doubt=doubt):
            self.found.tried.append(Tried(way=way, state="cannot win"))
        elif self.found.best and self.left_seconds <= 0:
            self.found.tried.append(Tried(way=way, state="no time left"))
        else:
            self.found.tried.append(self._measured(way))
        table.tell()

    def _measured(self, way: Way) -> Tried:
        """What a process of its own measures; whatever ends it is a result, too."""
        from onecard.plan.tuning import Tried
        from onecard.runs.measured import from_json

        config = _shortened(way, self.found.tried)
        job = {
            "trainer": "onecard",
            "config": config.model_dump(),
            "nanogpt": "",
            "updates": WARM_UP + MOST_UPDATES,
            "timed": MOST_UPDATES,
            "seconds": WAY_SHARE * self.seconds,
            "threads": way.threads,
        }
        # the first way has all the time it needs: without one there is no answer
        limit = self.left_seconds if self.found.best else None
        try:
            with closing(worker_lines("onecard.train.bench", job, "onecard", config, seconds=limit)) as lines:
                (answer,) = lines
        except OutOfTime:
            return Tried(way=way, state="no time left")
        except MachineError:
            raise
        except OnecardError as problem:
            return Tried(way=way, state="failed", said=problem.why)
        found = from_json(answer)
        if found.out_of_memory or not found.tokens_per_second:
            return Tried(way=way, state="out of memory")
        return Tried(
            way=way,
            state="measured",
            tokens_per_second=found.tokens_per_second,
            process_bytes=found.process_bytes,
            timed=self._timed(config, way, found),
        )

    def _timed(self, config: RunConfig, way: Way, found: Measured) -> TimedRun:
        """What plans may know of a measurement."""
        from onecard.plan.calibration import TimedRun, decisive
        from onecard.plan.memory.predict import predict_onecard
        from onecard.plan.precision import with_dtype

        assert found.tokens_per_second
        card = self.place.card if self.place else None
        config, reserved = decisive(with_dtype(config, card)), None
        if card and found.reserved_bytes:
            memory = predict_onecard(config, card, available_bytes=self.found.available_bytes)
            reserved = memory.process_bytes - memory.context_bytes
        return TimedRun(
            config=config,
            tokens_per_second=found.tokens_per_second,
            threads=way.threads,
            reserved_bytes=found.reserved_bytes,
            process_bytes=found.process_bytes if card else None,
            predicted_reserved_bytes=reserved,
        )

    def keep(self) -> None:
        """Save what was measured for later plans."""
        from onecard.inputs.calibration import Device, keep, public_version

        machine = self.found.machine
        runs = [each.timed for each in self.found.tried if each.timed]
        if not runs or not machine.get("name"):
            return
        device = Device(
            card=machine["name"], driver=machine.get("driver") or "", torch=public_version(machine["torch"])
        )
        self.found.calibration = str(keep(device, runs, date=time.strftime("%Y-%m-%d")))


def _shortened(way: Way, tried: list[Tried]) -> RunConfig:
    """The config of a way, with fewer micro-batches per update where one of its updates would take long.

    At least two remain of several: memory and the sums of gradients stay what they are.
    """
    config = way.config
    ratio = max((each.ratio for each in tried if each.ratio), default=1.0)
    if not way.predicted_tokens_per_second:
        return config
    tokens = SHORT_STEP_SECONDS * way.predicted_tokens_per_second * ratio
    micro_batches = max(2, round(tokens / (config.batch_size * config.block_size)))
    if micro_batches >= config.gradient_accumulation_steps:
        return config
    return config.replace({"gradient_accumulation_steps": micro_batches})


def _check_new(path: Path, *, option: str) -> None:
    """Refuse, before anything is measured, a file that exists or cannot be written."""
    from onecard.files import free_name

    if path.exists():
        raise ConfigError(
            f"{path} already exists",
            why=f"{option} never overwrites a file of yours",
            fix=f"{option} {free_name(path)}",
            name="file-exists",
        )
    check_writable(path, option=option)


def _share(tuned: Tuned, path: Path, talk: Console) -> None:
    """Show what a shared file says, then write it."""
    from onecard.report.tune import shared_text

    text = shared_text(tuned, date=time.strftime("%Y-%m-%d"))
    talk.print(f"{path} says this and no more:", soft_wrap=True, markup=False)
    talk.print(text, soft_wrap=True, markup=False, highlight=False)
    write_text(path, text, option="--share", overwrite=False)
    talk.print("to send it: CONTRIBUTING.md says how", soft_wrap=True)


def _nothing_ran(tuned: Tuned) -> OnecardError:
    """The error where no way could be measured."""
    memory = [each for each in tuned.tried if each.state == "out of memory"]
    said = next((each.said for each in tuned.tried if each.said), "")
    if memory or not said:
        return MachineError(
            "no way to run this config fits here",
            why=f"{len(memory)} of {len(tuned.tried)} ways that were measured ran out of memory",
            fix="onecard plan --fit says what would fit",
            name="nothing-fits",
        )
    return OnecardError(
        "every way that was measured stopped with an error",
        why=said,
        fix="onecard train shows the whole error",
        name="bench-failed",
    )


def _tell(tuned: Tuned, resolved: Resolved, *, write: str | None, as_json: bool) -> None:
    from onecard.report.tune import print_tune, tune_json, tuned_text

    if write:
        write_text(Path(write), tuned_text(tuned, resolved), option="--write", overwrite=False)
    if as_json:
        click.echo(json.dumps(tune_json(tuned)))
    else:
        print_tune(tuned, resolved, console(), written=write)
