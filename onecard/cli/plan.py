"""onecard plan: read a config and a card, plan, show."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import CountType, KeyCommand, SizeType, console, json_option, place_here
from onecard.errors import ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.plan.make import Plan
    from onecard.plan.place import Place
    from onecard.plan.seen import Seen


def complete_card(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from onecard.plan.cards import known_cards

    return [card.name for card in known_cards() if incomplete.lower() in card.name.lower()]


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
    explain: bool
    as_json: bool


@click.command(cls=KeyCommand, short_help="Will it fit, how fast, how good, what to change: before launch.")
@click.argument("config", required=False, type=PathType())
@click.option("--gpu", metavar="NAME", shell_complete=complete_card, help='A card ("RTX 4070"), auto, or none.')
@click.option("--vram", type=SizeType(), metavar="SIZE", help="A card of this size; the CUDA context is taken off it.")
@click.option("--other", type=SizeType(), metavar="SIZE", help="Memory that other programs hold on the card.")
@click.option("--trainer", type=click.Choice(["both", "onecard", "nanogpt"]), default="both", help="Whose run to plan.")
@click.option("--fit", is_flag=True, help="Find the fastest config that fits, with the same tokens per update.")
@click.option("--params", type=CountType(), metavar="N", help="With --fit: choose the shape for N parameters too.")
@click.option("--hours", type=float, metavar="H", help="What to train in H hours.")
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
    check(options)
    seen = _seen(options)
    made = _make(options, flags, seen)
    _write_files(options, made)
    if options.as_json:
        click.echo(json.dumps(plan_json(made, seen=seen)))
    else:
        _show(options, made, seen)
    return made.exit_code


def check(options: Options) -> None:
    """UsageError where what is asked for does not go together."""
    from onecard.units import MIB

    budget = " ".join(_budget(options)[:2])
    of_one_config = {
        "--fit --params": options.params,
        "--sensitivity": options.sensitivity or None,
        "--explain": options.explain or None,
        "--seen": None if options.seen is None else f"{options.seen / MIB:.0f}MiB",
        "--nvidia-smi": options.nvidia_smi,
        "--timeline": options.timeline,
    }
    beside = next((option for option, typed in of_one_config.items() if typed is not None), None)
    if budget and beside:
        option, typed = beside.split()[-1], of_one_config[beside]
        again = beside if typed is True else f"{beside} {quote(str(typed))}"
        named, place = [quote(options.config)] if options.config else [], _place_typed(options)
        raise UsageError(
            f"{option} does not go with {budget.split()[0]}",
            why=f"{budget.split()[0]} proposes configs that fit, and {option} is about a config there is",
            fix=f"{' '.join(['onecard plan', *named, *place, budget])} --write FILE.py, "
            f"then {' '.join(['onecard plan FILE.py', again, *place])}",
            name="two-questions",
        )
    if options.write and options.hours is None and options.tokens is None:
        raise UsageError(
            "--write needs --hours or --tokens",
            why="it saves the config that those propose",
            fix=f"onecard plan --hours 48 --write {quote(options.write)}",
            name="write-without-proposal",
        )
    if options.timeline:
        from onecard.cli.files import check_svg

        check_svg(options.timeline, option="--timeline")


def _place_typed(options: Options) -> list[str]:
    """The card and what it has, as words to type."""
    from onecard.units import MIB

    sizes = {"--vram": options.vram, "--other": options.other}
    words = {"--gpu": options.gpu} | {option: size and f"{size / MIB:.0f}MiB" for option, size in sizes.items()}
    return [f"{option} {quote(word)}" for option, word in words.items() if word]


def _make(options: Options, flags: list[Flag], seen: Seen | None) -> Plan:
    from onecard.plan.budget import budget_of
    from onecard.plan.make import make_plan

    budget = budget_of(hours=options.hours, tokens=options.tokens)
    resolved = read_config(options.config, [*_beside(options.config, flags), *flags])
    if options.config not in (None, "-"):
        resolved = replace(resolved, source=options.config)  # as typed, so that commands to paste find the file
    if options.vram is None and options.gpu in (None, "auto"):  # a named card's plan is the same on every machine
        resolved = _with_data_vocabulary(resolved)
    shown = seen.place if seen and options.gpu is None and options.vram is None else None
    place = shown.with_memory(vram_bytes=None, other_bytes=options.other) if shown else None
    return make_plan(
        resolved,
        place or place_named(options.gpu, options.vram, options.other),
        trainer=options.trainer,
        fit=options.fit,
        params=options.params,
        budget=budget,
        sensitivity=options.sensitivity,
    )


def _beside(config: str | None, flags: list[Flag]) -> list[Flag]:
    """A folder for a new run like the one in the folder that was named: commands to paste do not start that again."""
    from onecard.runs.files import free_path
    from onecard.runs.folder import is_run

    if config is None or not is_run(Path(config)) or "out_dir" in dict(flags):
        return []
    return [("out_dir", str(free_path(Path(config))))]


def _with_data_vocabulary(resolved: Resolved) -> Resolved:
    """With the vocab_size that `train` would take from the data; as it was where they are not here."""
    from onecard.cli.settle import open_data, with_vocabulary
    from onecard.config.resolve import PACKAGED_DEFAULT
    from onecard.errors import OnecardError

    if resolved.origins["dataset"] == PACKAGED_DEFAULT:
        return resolved
    try:
        dataset = open_data(resolved.config)
    except OnecardError:
        return resolved
    config = with_vocabulary(resolved, dataset)
    if config == resolved.config:
        return resolved
    return replace(resolved, config=config, origins={**resolved.origins, "vocab_size": str(dataset.path)})


def _write_files(options: Options, made: Plan) -> None:
    from onecard.cli.files import write_text
    from onecard.plan.budget import config_text
    from onecard.report.timeline import timeline_svg

    if options.timeline:
        trainer = "nanoGPT" if made.nanogpt else "onecard"
        title = f"{made.resolved.source or 'packaged default'} under {trainer}"
        write_text(Path(options.timeline), timeline_svg(made.first.memory, title=title), option="--timeline")
    if options.write and made.proposals:
        text = config_text(made.proposals[0])
        write_text(Path(options.write), text, option="--write", overwrite=False)


def _show(options: Options, made: Plan, seen: Seen | None) -> None:
    from onecard.report.memory import print_seen
    from onecard.report.plan import print_plan
    from onecard.report.talk import print_warnings

    print_warnings(made.resolved.warnings, console(stderr=True))
    print_plan(made, console(), explain=options.explain)
    if made.proposals == ():
        console().print(f"  fix: {_enough(options, made)}", soft_wrap=True, markup=False)
    if seen:
        print_seen(seen, made.first.memory, console())
    if options.write and made.proposals:
        console(stderr=True).print(f"wrote {options.write}")


def _budget(options: Options) -> list[str]:
    """The budget as words to type."""
    hours = [] if options.hours is None else ["--hours", f"{options.hours:g}"]
    return hours + ([] if options.tokens is None else ["--tokens", str(options.tokens)])


def _enough(options: Options, made: Plan) -> str:
    """What to type where no run can be proposed: the least budget for which one can; without one, --fit."""
    if made.enough is None:
        return f"no budget is enough, for want of memory; --fit instead of {_budget(options)[0]} says what fits"
    seconds, tokens = made.enough.seconds, made.enough.tokens
    enough = replace(options, hours=None if seconds is None else seconds / 3600, tokens=tokens)
    return f"{' '.join(_budget(enough))} is enough for one"


def read_config(config: str | None, flags: list[Flag]) -> Resolved:
    """The config of a file, a run folder, standard input (-) or the packaged default, under flags.

    The shape is init_from's.
    """
    from onecard.cli.files import read_text
    from onecard.cli.pretrained import with_pretrained_shape
    from onecard.config.resolve import resolve
    from onecard.runs.folder import CONFIG

    if config is None:
        return with_pretrained_shape(resolve(None, flags=flags))
    path = Path(config)
    if path.is_dir() and (path / CONFIG).is_file():
        path /= CONFIG
    text = read_text(sys.stdin.buffer if config == "-" else path)
    name = "standard input" if config == "-" else path.name
    if path.suffix == ".json":
        text = _said_in_json(text, name)
    return with_pretrained_shape(resolve(text, filename=name, flags=flags))


def _said_in_json(text: str, name: str) -> str:
    """A run's config.json as a config file says it, but for our own keys that say nothing new."""
    from onecard.config.resolve import assignments
    from onecard.config.schema import NANOGPT_KEYS, RunConfig

    fields = RunConfig.model_fields
    unsaid = {key: field.default for key, field in fields.items() if key not in {*NANOGPT_KEYS, "vocab_size"}}
    try:
        found = {key: value for key, value in json.loads(text).items() if key.isidentifier()}
        return assignments({key: value for key, value in found.items() if key not in unsaid or value != unsaid[key]})
    except (ValueError, AttributeError, RecursionError) as problem:
        raise ConfigError(
            f"{name} is not the config of a run",
            why="a run's config.json is one JSON object of keys and values",
            fix="name a nanoGPT config file, or a run folder",
            name="unreadable-file",
        ) from problem


def _seen(options: Options) -> Seen | None:
    """What the driver showed, as typed or as nvidia-smi printed it."""
    from onecard.cli.files import read_text
    from onecard.plan.seen import Seen, read_nvidia_smi

    nvidia_smi = options.nvidia_smi
    if nvidia_smi is None:
        return None if options.seen is None else Seen(process_bytes=options.seen)
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


def place_named(gpu: str | None, vram: int | None, other: int | None) -> Place | None:
    """The card that was named, or this machine's; None where there is none."""
    from onecard.plan.cards import find_card, plain_card
    from onecard.plan.place import Place
    from onecard.units import MIB

    for option, size_bytes, least_bytes in (("--vram", vram, MIB), ("--other", other, 0)):
        if size_bytes is not None and size_bytes < least_bytes:
            raise UsageError(
                f"{option} of {size_bytes:,} bytes is no size of a card's memory",
                why=f"it takes at least {least_bytes:,} bytes",
                fix=f"{option} 2.1GiB",
                name="bad-size",
            )
    if gpu not in (None, "auto", "none"):
        return Place(card=find_card(gpu)).with_memory(vram_bytes=vram, other_bytes=other)
    if gpu == "auto" or (gpu is None and vram is None):
        place = place_here()
        if place:
            return place.with_memory(vram_bytes=vram, other_bytes=other)
        if gpu == "auto":
            raise MachineError(
                "no NVIDIA card answers on this machine",
                why="NVML, the driver's own interface, is not there or does not respond",
                fix='name the card to plan for: --gpu "RTX 4070"',
                name="no-gpu",
            )
    return Place(card=plain_card(vram), other_bytes=other or 0) if vram is not None else None
