"""onecard bench --loss: recipes side by side, one complete run after another, each in a process of its own."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onecard import units
from onecard.cli.bench import TIMED, WARM_UP, measured_here, nanogpt_folder
from onecard.cli.files import check_writable, without_config, write_text
from onecard.cli.flags import Flag
from onecard.cli.library import console, needs_torch
from onecard.cli.signals import INTERRUPTED
from onecard.cli.worker import worker_lines
from onecard.errors import OnecardError, UsageError, out_of_memory
from onecard.inputs.before_run import check_data, check_keys
from onecard.inputs.config import config_named, open_data

if TYPE_CHECKING:
    from onecard.inputs.contenders import Contender, Job
    from onecard.runs.learned import Learned

SPEED_UPDATES = WARM_UP + 2 * TIMED  # that tell how many tokens --seconds are


def bench_loss(flags: list[Flag], /, **options: Any) -> int:
    """The answer of `onecard bench --loss`; its exit code."""
    from onecard.data.home import home_note
    from onecard.inputs.contenders import contenders, jobs_of
    from onecard.report.messages import print_error, print_findings, print_warnings

    talk = console(stderr=True)
    lengths = _lengths(options["lengths"])
    _check(options)
    needs_torch("a benchmark trains models")
    first = config_named(options["config"], flags, otherwise=without_config())
    check_keys(first.config)
    dataset = open_data(first.config)
    found = contenders(
        options["config"],
        flags,
        against="nanogpt" if options["against"] == "nanogpt" else "onecard",
        ours=options["ours"],
        theirs=options["theirs"],
        vocab_size=dataset.model_vocab_size,
        otherwise=without_config(),
    )
    checkout = nanogpt_folder(options["nanogpt"])
    print_warnings(filter(None, [home_note(os.environ)]), talk)
    import onecard.train  # noqa: F401  # a broken torch is reported here, not by each run

    longest = max((one.config for one in found), key=lambda config: config.block_size)
    print_findings(check_data(longest, dataset), talk)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: show what is complete
    learned: list[Learned] = []
    stopped: KeyboardInterrupt | OnecardError | None = None
    try:
        tokens = _tokens_in(options["seconds"], found[0], checkout) if options["seconds"] else options["tokens"]
        jobs = jobs_of(found, tokens=tokens, lengths=lengths, seeds=options["seeds"], seconds=options["seconds"])
        _learn(jobs, checkout, learned)
    except (KeyboardInterrupt, OnecardError) as problem:
        stopped = problem
    if stopped and not learned:
        raise stopped
    _tell(learned, found, plot=options["plot"], as_json=options["as_json"])
    if isinstance(stopped, OnecardError):
        print_error(stopped, talk)  # printed, not raised: with --json, stdout already has its one object
        return stopped.exit_code
    if stopped:
        talk.print("interrupted: these are the runs that were complete", soft_wrap=True)
    return INTERRUPTED if stopped else 0


def _tell(learned: list[Learned], found: Sequence[Contender], *, plot: str | None, as_json: bool) -> None:
    from onecard.inputs.contenders import cautions
    from onecard.report.bench_loss import loss_json, loss_plot, print_losses
    from onecard.runs.learned import verdict

    said = verdict(learned)
    if plot:
        write_text(Path(plot), loss_plot(learned, said), option="--plot")
    if as_json:
        click.echo(json.dumps(loss_json(learned, said), allow_nan=False))
    else:
        print_losses(learned, said, cautions(found, said.theirs, said.ours), console())


def _learn(jobs: Sequence[Job], checkout: Path | None, learned: list[Learned]) -> None:
    """Add the runs to `learned`, one after another: two at once would slow each other."""
    from onecard.runs.learned import from_json

    talk = console(stderr=True)
    all_tokens = sum(job.config.total_tokens for job in jobs)
    began, tokens_done = time.perf_counter(), 0
    runs = f"{len(jobs)} runs" if len(jobs) > 1 else "one run"
    talk.print(f"{runs}, {units.count(all_tokens)} tokens in all, one after another", soft_wrap=True)
    for number, job in enumerate(jobs, 1):
        with (
            closing(worker_lines("onecard.train.bench_loss", job.as_json(checkout), job.trainer, job.config)) as lines,
            talk.status(job.words) if talk.is_terminal else nullcontext() as status,
        ):
            for line in lines:
                updates = line["updates"]
                done = tokens_done + updates * job.config.tokens_per_step
                seconds = (time.perf_counter() - began) * (all_tokens - done) / done
                left = f"{units.duration(seconds)} left"
                if status:
                    status.update(f"{job.words}: update {updates} of {job.config.max_iters}, {left}")
        run = from_json(line)
        learned.append(run)
        tokens_done += job.config.total_tokens
        took = f"loss {run.final_loss:.4f} in {units.duration(run.seconds)}"
        talk.print(f"{number}/{len(jobs)}  {job.words}: {took}; {left}", soft_wrap=True)


def _tokens_in(seconds: float, of: Contender, checkout: Path | None) -> float:
    """Tokens that the other side reads in so many seconds of training: measured first, so that its end is declared."""
    console(stderr=True).print(f"measuring how many tokens {of.name} reads in {units.duration(seconds)}")
    speed = measured_here(of.trainer, of.config, checkout, SPEED_UPDATES).tokens_per_second
    if speed is None:
        raise out_of_memory(MemoryError(f"while the speed of {of.name} was measured"))
    return seconds * speed


def _lengths(text: str) -> list[float]:
    """The shares of the other's tokens, the shortest first."""
    try:
        lengths = sorted({float(word) for word in text.split(",")})
    except ValueError:
        lengths = []
    if not lengths or not all(0 < length <= 1 for length in lengths):
        raise UsageError(
            f"--lengths {text} does not work",
            why="they are shares of the other side's tokens: above 0, at most 1",
            fix="--lengths 0.4,0.5,0.65,1",
            name="bad-lengths",
        )
    return lengths


def _check(options: dict[str, Any]) -> None:
    """Refuse what cannot be compared, before anything is read."""
    against, nanogpt = options["against"], options["nanogpt"]
    if against is None:
        raise UsageError(
            "--loss compares two recipes, and one is missing",
            why="nothing says what to compare the config with",
            fix="--against adamw (the same model here), or --against nanogpt --nanogpt DIR",
            name="no-other-side",
        )
    if (against == "nanogpt") is not bool(nanogpt):
        raise UsageError(
            f"--against {against} {'needs' if nanogpt is None else 'does not run'} a nanoGPT checkout",
            why="nanoGPT's model.py is imported from a folder that you name",
            fix="--against nanogpt --nanogpt ../nanoGPT",
            name="no-checkout" if nanogpt is None else "two-questions",
        )
    seconds = options["seconds"]
    if seconds is not None and options["tokens"] is not None:
        raise UsageError(
            "--tokens and --seconds are two lengths of one run",
            why="each says how long the other side trains",
            fix=f"--seconds {seconds:g}, or --tokens {options['tokens']}",
            name="two-questions",
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is no time to train", why="a run takes time", fix="--seconds 60")
    if options["plot"]:
        check_writable(Path(options["plot"]), option="--plot")
