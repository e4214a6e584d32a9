"""onecard plan: read a config and a card, plan, show."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

import click

from onecard.cli.files import PathType, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import CountType, HoursType, KeyCommand, SizeType, console, json_option
from onecard.errors import UsageError
from onecard.inputs.questions import ABOUT_CARDS, check_questions

if TYPE_CHECKING:
    from onecard.plan.nvidia_smi import DriverFigures
    from onecard.plan.plan import Plan


def complete_card(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from onecard.plan.cards import known_cards

    return [card.name for card in known_cards() if incomplete.lower() in card.name.lower()]


def complete_interconnect(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from onecard.plan.interconnects import INTERCONNECTS

    return [link.name for link in INTERCONNECTS if link.name.startswith(incomplete.lower())]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    config: str | None
    gpu: str | None
    vram: int | None
    other: int | None
    trainer: Literal["both", "onecard", "nanogpt"]
    fit: bool
    params: int | None
    hours: float | None
    tokens: int | None
    write: str | None
    sensitivity: bool
    seen: int | None
    nvidia_smi: str | None
    timeline: str | None
    html: str | None
    gpus: int | None
    nodes: int | None
    interconnect: tuple[str, ...]
    price: tuple[str, ...]
    explain: bool
    details: bool
    as_json: bool


@click.command(cls=KeyCommand, short_help="Will it fit, how fast, how good, what to change: before launch.")
@click.argument("config", required=False, type=PathType())
@click.option("--gpu", metavar="NAME", shell_complete=complete_card, help='A card ("RTX 4070"), auto, or none.')
@click.option("--vram", type=SizeType(), metavar="SIZE", help="A card of this size; the CUDA context is taken off it.")
@click.option("--other", type=SizeType(), metavar="SIZE", help="Memory that other programs hold on the card.")
@click.option("--trainer", type=click.Choice(["both", "onecard", "nanogpt"]), default="both", help="Whose run to plan.")
@click.option("--fit", is_flag=True, help="Find the fastest config that fits, with the same tokens per update.")
@click.option("--params", type=CountType(), metavar="N", help="With --fit: choose the shape for N parameters too.")
@click.option("--hours", type=HoursType(), metavar="H", help="What to train in H hours.")
@click.option("--tokens", type=CountType(), metavar="N", help="What to train on N tokens.")
@click.option("--write", type=PathType(), metavar="FILE", help="With --hours or --tokens: save the proposed config.")
@click.option("--sensitivity", is_flag=True, help="Re-plan with each setting halved, doubled or switched.")
@click.option("--seen", type=SizeType(), metavar="SIZE", help="What the driver showed for the process.")
@click.option(
    "--nvidia-smi", type=PathType(), metavar="FILE", help="The same from nvidia-smi's output; - is standard input."
)
@click.option(
    "--timeline", type=PathType(), metavar="FILE.svg", help="Draw memory through one step and one evaluation."
)
@click.option("--html", type=PathType(), metavar="FILE", help="Write everything to one file to share, with charts.")
@click.option("--gpus", type=int, metavar="N", help="On N such cards in each machine.")
@click.option("--nodes", type=int, metavar="M", help="On M machines.")
@click.option(
    "--interconnect",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_interconnect,
    help='What links the cards ("PCIe 4 x16", nvlink-4), or the machines ("25 Gb/s Ethernet").',
)
@click.option(
    "--price", multiple=True, metavar="X", help='Cost of one card for an hour; of another card "RTX 4090=0.35".'
)
@click.option("--details", is_flag=True, help="The long text: both trainers, every fix, assumptions and sources.")
@click.option("--explain", is_flag=True, help="Every key, its value and where it came from.")
@json_option
@click.pass_obj
def plan(flags: list[Flag], /, **typed: object) -> int:
    """\b
    Example:
      onecard plan train_fineweb.py --gpu "RTX 4070" --other 2.1GiB --batch_size=8

    Whether a run fits, to the MiB, how fast and how good it will be, and what to change: no GPU, no torch.

    CONFIG is a nanoGPT config file (read, never run), a run folder, or - for standard input; without one, a small
    default.
    Any nanoGPT key can be set with --key=value.
    """
    from onecard.report.plan_json import plan_json

    options = Options(**typed)  # type: ignore[arg-type]  # click made them by these names
    _check(options, flags)
    driver = _driver(options)
    made = _make(options, flags, driver)
    _write_files(options, made, driver)
    if options.as_json:
        click.echo(json.dumps(plan_json(made, driver=driver)))
    else:
        _show(options, made, driver)
    return made.exit_code


def _check(options: Options, flags: list[Flag]) -> None:
    """UsageError where what is asked for does not go together."""
    from onecard.units import MIB

    values = {
        "hours": None if options.hours is None else f"{options.hours:g}",
        "tokens": options.tokens,
        "params": options.params,
        "sensitivity": options.sensitivity or None,
        "explain": options.explain or None,
        "seen": None if options.seen is None else f"{options.seen / MIB:.0f}MiB",
        "nvidia_smi": options.nvidia_smi,
        "timeline": options.timeline,
        "gpus": options.gpus,
        "nodes": options.nodes,
        "interconnect": " --interconnect ".join(map(quote, options.interconnect)) or None,
        "price": " --price ".join(map(quote, options.price)) or None,
    }
    typed = {name: value for name, value in values.items() if value is not None}
    asked = {name: f"--{name.replace('_', '-')}" for name in typed}

    def again(name: str) -> str:
        is_quoted = name in ("interconnect", "price")  # each of several
        value = str(typed[name]) if is_quoted else quote(str(typed[name]))
        words = asked[name] if typed[name] is True else f"{asked[name]} {value}"
        return f"--fit {words}" if name == "params" else words

    def apart(budget: str, beside: str) -> str:
        proposed = " ".join([*_plan_typed(options, flags), again(budget), "--write FILE.py"])
        together = [name for name in ABOUT_CARDS if name in typed] if beside in ABOUT_CARDS else [beside]
        return f"{proposed}, then {' '.join(['onecard plan FILE.py', *map(again, together), *_place_typed(options)])}"

    check_questions(asked, apart=apart)
    if options.write and options.hours is None and options.tokens is None:
        raise UsageError(
            "--write needs --hours or --tokens",
            why="it saves the config that those propose",
            fix=" ".join([*_plan_typed(options, flags), "--hours 48 --write", quote(options.write)]),
            name="write-without-proposal",
        )
    if options.timeline:
        from onecard.cli.files import check_svg

        check_svg(options.timeline, option="--timeline")


def _plan_typed(options: Options, flags: list[Flag]) -> list[str]:
    """The command with its config, keys and card, as words to type."""
    keys = [quote(f"--{key}={value}") for key, value in flags]
    return ["onecard plan", *([quote(options.config)] if options.config else []), *keys, *_place_typed(options)]


def _place_typed(options: Options) -> list[str]:
    """The card and what it has, as words to type."""
    from onecard.units import MIB

    sizes = {"--vram": options.vram, "--other": options.other}
    words = {"--gpu": options.gpu} | {option: size and f"{size / MIB:.0f}MiB" for option, size in sizes.items()}
    return [f"{option} {quote(word)}" for option, word in words.items() if word]


def _make(options: Options, flags: list[Flag], driver: DriverFigures | None) -> Plan:
    from onecard.inputs.make_plan import plan_named

    shown = driver.place if driver and options.gpu is None and options.vram is None else None
    return plan_named(
        options.config,
        flags,
        gpu=options.gpu,
        vram=options.vram,
        other=options.other,
        place=shown.with_memory(vram_bytes=None, other_bytes=options.other) if shown else None,
        trainer=options.trainer,
        fit=options.fit,
        params=options.params,
        hours=options.hours,
        tokens=options.tokens,
        sensitivity=options.sensitivity,
        gpus=options.gpus,
        nodes=options.nodes,
        interconnects=options.interconnect,
        prices=options.price,
        otherwise=without_config(),
    )


def _write_files(options: Options, made: Plan, driver: DriverFigures | None) -> None:
    from onecard.cli.files import write_text
    from onecard.plan.proposal import config_text
    from onecard.report.timeline import timeline_of

    if options.timeline:
        write_text(Path(options.timeline), timeline_of(made), option="--timeline")
    if options.html:
        from onecard.ui.single_file import plan_file

        write_text(Path(options.html), plan_file(made, driver=driver), option="--html")
    if options.write and made.proposals:
        text = config_text(made.proposals[0])
        write_text(Path(options.write), text, option="--write", overwrite=False)


def _show(options: Options, made: Plan, driver: DriverFigures | None) -> None:
    from onecard.report.messages import print_warnings
    from onecard.report.plan import print_plan

    print_warnings(made.warnings, console(stderr=True))
    print_plan(made, console(), explain=options.explain, details=options.details, driver=driver)
    if made.proposals == ():
        console().print(f"  fix: {_enough(options, made)}", soft_wrap=True, markup=False)
    for written in (options.timeline, options.html, options.write if made.proposals else None):
        if written:
            console(stderr=True).print(f"wrote {written}", soft_wrap=True, markup=False)


def _budget(options: Options) -> list[str]:
    """The budget as words to type."""
    hours = [] if options.hours is None else ["--hours", f"{options.hours:g}"]
    return hours + ([] if options.tokens is None else ["--tokens", str(options.tokens)])


def _enough(options: Options, made: Plan) -> str:
    """What to type where no run can be proposed: the least budget for which one can; without one, --fit."""
    from onecard.plan.data import MANY_EPOCHS
    from onecard.units import count

    enough = made.proposed.enough if made.proposed else None
    if enough is None:
        return f"no budget is enough: memory is short; --fit instead of {_budget(options)[0]} says what fits"
    seconds, tokens = enough.seconds, enough.tokens
    if tokens is not None and options.tokens is None:  # the data's size is the bound
        least = count(tokens / MANY_EPOCHS)
        return f"more data: {made.data.source} has {count(made.data.train_tokens or 0)} tokens, {least} are the least"
    larger = replace(options, hours=None if seconds is None else seconds / 3600, tokens=tokens)
    return f"{' '.join(_budget(larger))} is enough for one"


def _driver(options: Options) -> DriverFigures | None:
    """What the driver showed, as typed or as nvidia-smi printed it."""
    nvidia_smi = options.nvidia_smi
    if nvidia_smi is None and options.seen is None:
        return None
    from onecard.inputs.text import read_text
    from onecard.plan.nvidia_smi import DriverFigures, read_nvidia_smi

    if nvidia_smi is None:
        return DriverFigures(process_bytes=options.seen)
    piped = "nvidia-smi | onecard plan CONFIG --nvidia-smi -"
    source = sys.stdin.buffer if nvidia_smi == "-" else Path(nvidia_smi)
    text = read_text(source, kind="nvidia-smi output", otherwise=piped)
    found = read_nvidia_smi(text)
    if found is None:
        raise UsageError(
            f"{nvidia_smi} shows no computing process and its memory",
            why="nvidia-smi's table lists processes of type C, and what their card holds; this text has none",
            fix=f"while the run trains: {piped}",
            name="no-process-seen",
        )
    return found
