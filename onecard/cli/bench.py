"""onecard bench: nanoGPT and onecard in turn on this machine, with the same data, limit and tokens per update."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onecard.cli.files import PathType, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, json_option, needs_torch
from onecard.cli.signals import INTERRUPTED
from onecard.errors import ConfigError, OnecardError, UsageError
from onecard.inputs.before_run import check_data, check_keys, torch_environment
from onecard.inputs.config import config_named, open_data, with_vocabulary

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.plan.speed.work import TrainerName
    from onecard.runs.measured import Measured

TIMED = 10  # updates to time at least; their median counts
WARM_UP = 5  # updates before that: compiling, recording, settling


@click.command(cls=KeyCommand, short_help="Measure speed and memory here, beside nanoGPT if you name its folder.")
@click.argument("config", required=False, type=PathType())
@click.option("--nanogpt", type=PathType(), metavar="DIR", help="A nanoGPT checkout; its model.py is imported and run.")
@click.option(
    "--batches", metavar="N,N", help="Micro-batches to try, at equal tokens per update; default: the config's."
)
@click.option(
    "--repeat",
    default=2,
    type=click.IntRange(min=1),
    metavar="N",
    show_default=True,
    help="Measure each this many times, with a different seed each time.",
)
@click.option("--updates", default=WARM_UP + 2 * TIMED, show_default=True, help="Updates per measurement.")
@click.option("--plot", type=PathType(), metavar="FILE", help="Draw the losses at equal tokens (SVG).")
@json_option
@click.pass_obj
def bench(flags: list[Flag], /, **options: Any) -> int:
    """\b
    Example:
      onecard bench train_gpt2.py --nanogpt ../nanoGPT --batches 8,16,32 --memory_limit=12GiB

    Measures tokens per second, memory and loss on this machine, each measurement in its own process.

    Every trainer runs every micro-batch until one is too large; without --nanogpt onecard is measured alone.
    """
    from onecard.cli.files import check_svg
    from onecard.data.home import home_note
    from onecard.report.messages import print_error, print_findings, print_warnings

    if options["plot"]:
        check_svg(options["plot"], option="--plot")
    needs_torch("a benchmark trains a model")
    if options["updates"] < WARM_UP + TIMED:
        raise UsageError(
            f"--updates {options['updates']} is too few",
            why=f"{WARM_UP} updates warm up, and the median needs at least {TIMED} more",
            fix=f"--updates {WARM_UP + TIMED}",
        )
    resolved = config_named(options["config"], flags, otherwise=without_config())
    check_keys(resolved.config)
    dataset = open_data(resolved.config)
    config = with_vocabulary(resolved, dataset.model_vocab_size)
    print_warnings(filter(None, [home_note(os.environ)]), console(stderr=True))
    import onecard.train  # noqa: F401  # a broken torch is reported here, not by each measurement

    print_findings(check_data(config, dataset), console(stderr=True))
    if options["nanogpt"] and config.model != "gpt2":
        raise UsageError(
            f"nanoGPT cannot be measured with model={config.model}",
            why="its model.py has GPT-2's layers and no others",
            fix="leave --nanogpt out (onecard alone), or --model=gpt2 (both)",
            name="not-nanogpts-model",
        )
    configs = [config.in_micro_batches(size) for size in _sizes(options["batches"], config)]
    checkout = _checkout(options["nanogpt"])
    found: list[Measured] = []
    stopped: KeyboardInterrupt | OnecardError | None = None
    talk = console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: show what has been measured
    try:
        for measured in _measurements(configs, checkout, repeat=options["repeat"], updates=options["updates"]):
            found.append(measured)
            talk.print(f"{_job(measured.trainer, measured)}: {_in_words(measured)}", soft_wrap=True)
    except (KeyboardInterrupt, OnecardError) as problem:
        stopped = problem
    if stopped and not found:
        raise stopped
    _tell(found, config, plot=options["plot"], as_json=options["as_json"])
    if isinstance(stopped, OnecardError):
        print_error(stopped, talk)  # printed, not raised: with --json, stdout already has its one object
        return stopped.exit_code
    if stopped:
        talk.print("interrupted: these are the figures measured so far", soft_wrap=True)
    return INTERRUPTED if stopped else 0


def _tell(found: list[Measured], config: RunConfig, *, plot: str | None, as_json: bool) -> None:
    from onecard.report.bench import bench_json, bench_plot, print_bench

    if plot:
        from onecard.cli.files import write_text

        write_text(Path(plot), bench_plot(found), option="--plot")
    if as_json:
        click.echo(json.dumps(bench_json(found, config), allow_nan=False))
    else:
        print_bench(found, config, console())


def _measurements(configs: list[RunConfig], checkout: Path | None, *, repeat: int, updates: int) -> Iterator[Measured]:
    """Rounds of both trainers in turn, so that other work on the machine affects both."""
    talk = console(stderr=True)
    too_large: dict[str, int] = {}
    trainers: list[TrainerName] = ["nanogpt", "onecard"] if checkout else ["onecard"]
    for number in range(repeat):
        for config in configs:
            for trainer in trainers:
                if config.batch_size >= too_large.get(trainer, sys.maxsize):
                    continue
                seeded = config.replace({"seed": config.seed + number})
                with talk.status(f"{_job(trainer, seeded)}: {updates} updates") if talk.is_terminal else nullcontext():
                    measured = _run(trainer, seeded, checkout, updates)
                if measured.out_of_memory:
                    too_large[trainer] = config.batch_size
                yield measured


def _job(trainer: TrainerName, of: RunConfig | Measured) -> str:
    return f"{trainer}, batch {of.batch_size}, seed {of.seed}"


def _in_words(measured: Measured) -> str:
    if measured.out_of_memory:
        return "out of memory"
    return f"{measured.tokens_per_second:,.0f} tokens/s" if measured.tokens_per_second else "no figures"


def _run(trainer: TrainerName, config: RunConfig, checkout: Path | None, updates: int) -> Measured:
    from onecard.runs.measured import from_json

    job = {
        "trainer": trainer,
        "config": config.model_dump(),
        "nanogpt": str(checkout),
        "updates": updates,
        "timed": updates - WARM_UP,
    }
    as_published = config.replace({"expandable_segments": trainer == "onecard" and config.expandable_segments})
    environment = os.environ | torch_environment(as_published, os.environ)
    command = [sys.executable, "-m", "onecard.train.bench", json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise OnecardError(
            f"{trainer} at batch {config.batch_size} stopped with an error",
            why=last[0] if last else f"its process ended with code {done.returncode}",
            fix="run it alone to see the whole error: onecard train"
            if trainer == "onecard"
            else "try its own train.py",
            name="bench-failed",
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        problem = OnecardError(**answer["error"])
        problem.exit_code = answer["exit_code"]
        raise problem
    return from_json(answer)


def _sizes(text: str | None, config: RunConfig) -> list[int]:
    if text is None:
        return [config.batch_size]
    try:
        sizes = sorted({int(word) for word in text.split(",")})
    except ValueError:
        sizes = []
    wrong = [size for size in sizes if size < 1 or config.sequences_per_step % size]
    if not sizes or wrong:
        raise UsageError(
            f"--batches {text} does not work here",
            why=f"an update has {config.sequences_per_step} sequences, and each micro-batch must divide them",
            fix=f"--batches {','.join(map(str, _working_sizes(config)))}",
        )
    return sizes


def _working_sizes(config: RunConfig) -> list[int]:
    """A few micro-batches that divide an update: the largest that people try."""
    return [size for size in range(1, 65) if config.sequences_per_step % size == 0][-4:]


def _checkout(folder: str | None) -> Path | None:
    if folder is None:
        return None
    path = Path(folder).resolve()
    if not (path / "model.py").is_file():
        raise ConfigError(
            f"{folder} is not a nanoGPT checkout",
            why="it has no model.py",
            fix="git clone https://github.com/karpathy/nanoGPT, and name that folder",
            name="not-nanogpt",
        )
    return path
