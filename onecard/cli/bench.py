"""onecard bench: nanoGPT and onecard in turn on this machine, with the same data, limit and tokens per update.

With --loss it compares recipes by what they learn: bench_loss.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onecard.cli.files import PathType, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import CountType, KeyCommand, console, json_option, needs_torch
from onecard.cli.signals import INTERRUPTED
from onecard.cli.worker import worker_lines
from onecard.errors import ConfigError, OnecardError, UsageError
from onecard.inputs.before_run import check_data, check_keys
from onecard.inputs.config import config_named, open_data, with_vocabulary

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.plan.speed.work import TrainerName
    from onecard.runs.measured import Measured

TIMED = 10  # updates to time at least; their median counts
WARM_UP = 5  # updates before that: compiling, recording, settling


OF_SPEED, OF_LOSS = (
    ("batches", "repeat", "updates"),
    ("against", "tokens", "seconds", "seeds", "lengths", "ours", "theirs"),
)


@click.command(
    cls=KeyCommand, short_help="Measure speed, memory or what recipes learn here, beside nanoGPT if you like."
)
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
@click.option("--loss", is_flag=True, help="Compare recipes: train both sides to the end, and compare their losses.")
@click.option(
    "--against", type=click.Choice(["adamw", "nanogpt"]), help="With --loss, the other side: AdamW here, or nanoGPT."
)
@click.option("--tokens", type=CountType(), metavar="N", help="Tokens of the other side; default: those of max_iters.")
@click.option("--seconds", type=float, metavar="S", help="Or as many as it reads in S seconds of training.")
@click.option(
    "--seeds", default=2, type=click.IntRange(min=1), metavar="K", show_default=True, help="Seeds of each run."
)
@click.option(
    "--lengths",
    default="0.4,0.5,0.65,1",
    metavar="A,B,…",
    show_default=True,
    help="Our runs, as shares of those tokens: each complete, with its own schedule.",
)
@click.option("--set", "ours", multiple=True, metavar="KEY=A,B,…", help="Try these values on our side.")
@click.option(
    "--against-set", "theirs", multiple=True, metavar="KEY=A,B,…", help="Try these on the other; its best counts."
)
@click.option("--plot", type=PathType(), metavar="FILE", help="Draw the losses (SVG).")
@json_option
@click.pass_obj
@click.pass_context
def bench(context: click.Context, flags: list[Flag], /, **options: Any) -> int:
    """\b
    Example:
      onecard bench train_gpt2.py --nanogpt ../nanoGPT --batches 8,16,32 --memory_limit=12GiB
      onecard bench --loss train_gpt2.py --against adamw --set learning_rate=0.001,0.002
                    --against-set learning_rate=0.0005,0.001,0.002 --tokens 20M --plot losses.svg

    Measures tokens per second, memory and loss on this machine, each measurement in its own process.

    Every trainer runs every micro-batch until one is too large; without --nanogpt onecard is measured alone.

    --loss compares recipes: CONFIG as typed, and the same config with nanoGPT's recipe, under our trainer (adamw) or
    nanoGPT's own model and loop (nanogpt). It answers in which share of the other's tokens and seconds ours reaches
    the other's final loss. --key=value is for both sides, --set for ours, --against-set for the other; the best of
    each side counts. Only losses at the end of a complete run count. Runs are not kept.
    """
    from onecard.cli.files import check_svg
    from onecard.data.home import home_note
    from onecard.report.messages import print_error, print_findings, print_warnings

    if options["plot"]:
        check_svg(options["plot"], option="--plot")
    _one_question(context, loss=options["loss"])
    if options["loss"]:
        from onecard.cli.bench_loss import bench_loss

        return bench_loss(flags, **options)
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
    checkout = nanogpt_folder(options["nanogpt"])
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
                    measured = measured_here(trainer, seeded, checkout, updates)
                if measured.out_of_memory:
                    too_large[trainer] = config.batch_size
                yield measured


def _job(trainer: TrainerName, of: RunConfig | Measured) -> str:
    return f"{trainer}, batch {of.batch_size}, seed {of.seed}"


def _in_words(measured: Measured) -> str:
    if measured.out_of_memory:
        return "out of memory"
    return f"{measured.tokens_per_second:,.0f} tokens/s" if measured.tokens_per_second else "no figures"


def measured_here(trainer: TrainerName, config: RunConfig, checkout: Path | None, updates: int) -> Measured:
    """What a process of its own measures."""
    from onecard.runs.measured import from_json

    job = {
        "trainer": trainer,
        "config": config.model_dump(),
        "nanogpt": str(checkout),
        "updates": updates,
        "timed": updates - WARM_UP,
    }
    with closing(worker_lines("onecard.train.bench", job, trainer, config)) as lines:
        (answer,) = lines
    return from_json(answer)


def _one_question(context: click.Context, *, loss: bool) -> None:
    """Refuse options of the other question: they would do nothing."""
    for name in OF_SPEED if loss else OF_LOSS:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(one.opts[0] for one in context.command.params if one.name == name)
            raise UsageError(
                f"{option} has no meaning {'with' if loss else 'without'} --loss",
                why="--loss compares what recipes learn; without it speed and memory are measured",
                fix=f"leave {option} out" if loss else f"add --loss --against adamw, or leave {option} out",
                name="two-questions",
            )


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


def nanogpt_folder(folder: str | None) -> Path | None:
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
