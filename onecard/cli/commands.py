"""One function per command: read, compute, show. Heavy imports stay inside, so that --help answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onecard import __version__
from onecard.cli.flags import Flag
from onecard.cli.usage import unknown_command
from onecard.errors import MachineError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from onecard.config.resolve import Resolved
    from onecard.plan.memory.predict import Memory
    from onecard.plan.place import Place
    from onecard.plan.seen import Seen


class Commands(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown_command(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class KeyCommand(click.Command):
    """A command that also takes --key=value flags, and completes them in the shell."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from onecard.config.schema import KEYS

        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--"):
            offered += [CompletionItem(f"--{k}=", help=m) for k, m in KEYS.items() if f"--{k}=".startswith(incomplete)]
        return offered

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        # completion parses the raw line, flags included; everywhere else they were split off before
        if extra.get("resilient_parsing"):
            extra["ignore_unknown_options"] = extra["allow_extra_args"] = True
        return super().make_context(info_name, args, parent, **extra)


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic in click >= 8.5 only
    """A size in bytes: 4464MiB, 2.1GiB, 12GB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from onecard.units import parse_bytes

        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError:
            raise UsageError(
                f"{value!r} is not a size",
                why=f"{param.opts[0]} takes a number and a unit",
                fix=f"{param.opts[0]} 2.1GiB (or 2150MiB)",
                name="bad-size",
            ) from None


def _complete_card(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from onecard.plan.cards import known_cards

    return [card.name for card in known_cards() if incomplete.lower() in card.name.lower()]


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="onecard")
def cli() -> None:
    """\b
    Example:
      onecard plan my_nanogpt_config.py --gpu "RTX 4070" --batch_size=8

    Plan, train and understand a GPT on the one graphics card you have.

    Config keys are nanoGPT's, written --key=value anywhere on the line.
    """


@cli.command(cls=KeyCommand, short_help="Will it fit? What a run will be, before launch: no GPU, no torch.")
@click.argument("config", required=False)
@click.option("--gpu", metavar="NAME", shell_complete=_complete_card, help='A card ("RTX 4070"), auto, or none.')
@click.option("--vram", type=SizeType(), metavar="SIZE", help="Memory torch may take, instead of the card's own.")
@click.option("--other", type=SizeType(), metavar="SIZE", help="Memory that other programs hold on the card.")
@click.option("--trainer", type=click.Choice(["both", "onecard", "nanogpt"]), default="both", help="Whose run to plan.")
@click.option("--sensitivity", is_flag=True, help="Re-plan with each setting halved, doubled or switched.")
@click.option("--seen", type=SizeType(), metavar="SIZE", help="What the driver showed for the process.")
@click.option("--nvidia-smi", metavar="FILE", help="The same from nvidia-smi's output; - is standard input.")
@click.option("--timeline", metavar="FILE.svg", help="Draw memory through one step and one evaluation.")
@click.option("--explain", is_flag=True, help="Every key, its value and where it came from.")
@json_option
@click.pass_obj
def plan(
    flags: list[Flag],
    config: str | None,
    gpu: str | None,
    vram: int | None,
    other: int | None,
    trainer: str,
    sensitivity: bool,
    seen: int | None,
    nvidia_smi: str | None,
    timeline: str | None,
    explain: bool,
    as_json: bool,
) -> int:
    """\b
    Example:
      onecard plan train_fineweb.py --gpu "RTX 4070" --other 2.1GiB --batch_size=8

    Whether a run fits, to the MiB, and what takes the memory: no GPU and no torch needed.

    CONFIG is a nanoGPT config file (read, never run), or - for standard input; without one, a small default.
    Any nanoGPT key can be set with --key=value.
    """
    from onecard.plan.make import make_plan
    from onecard.plan.sensitivity import sensitivity as single_changes
    from onecard.report.memory import print_seen, print_sensitivity
    from onecard.report.plan import print_plan
    from onecard.report.plan_json import plan_json
    from onecard.report.talk import print_warnings

    resolved = _resolve(config, flags)
    showed = _seen(seen, nvidia_smi)
    made = make_plan(resolved, _place(gpu, vram, other), nanogpt=trainer != "onecard")
    changes = single_changes(made.config, made.place.card if made.place else None) if sensitivity else None
    if timeline and made.nanogpt:
        _write_timeline(timeline, made.nanogpt, title=resolved.source or "packaged default")
    if as_json:
        click.echo(json.dumps(plan_json(made, changes=changes, seen=showed)))
        return made.exit_code
    print_warnings(resolved.warnings, _console(stderr=True))
    print_plan(made, _console(), explain=explain)
    if changes is not None:
        print_sensitivity(changes, _console())
    if showed and made.nanogpt:
        print_seen(showed, made.nanogpt, _console())
    return made.exit_code


@cli.command(short_help="The cards onecard knows, with sources.")
@click.argument("word", nargs=-1)
@json_option
@click.pass_obj
def gpus(flags: list[Flag], word: tuple[str, ...], as_json: bool) -> int:
    """\b
    Example:
      onecard gpus 4070

    The cards onecard knows, with the source of every figure.

    WORD narrows the list: a model, an architecture ("Ada"), a suffix ("laptop").
    """
    from onecard.plan.cards import search_cards
    from onecard.report.cards import cards_json, print_cards

    _no_flags(flags, "gpus")
    found = search_cards(" ".join(word))
    if as_json:
        click.echo(json.dumps(cards_json(found)))
    else:
        print_cards(found, _console())
    return 0


@cli.command(short_help="A script that lets your shell complete commands and keys.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(flags: list[Flag], shell: str) -> int:
    """\b
    Example:
      eval "$(onecard completion bash)"      # put this line into ~/.bashrc

    The script that makes your shell complete onecard's commands, options and keys.
    """
    from click.shell_completion import get_completion_class

    _no_flags(flags, "completion")
    kind = get_completion_class(shell)
    assert kind is not None  # click knows the three shells above
    click.echo(kind(cli, {}, "onecard", "_ONECARD_COMPLETE").source())
    return 0


def _resolve(config: str | None, flags: list[Flag]) -> Resolved:
    from onecard.cli.files import read_text
    from onecard.config.resolve import resolve

    if config is None:
        return resolve(None, flags=flags)
    text = read_text(sys.stdin.buffer if config == "-" else Path(config))
    return resolve(text, filename="standard input" if config == "-" else Path(config).name, flags=flags)


def _seen(process_bytes: int | None, nvidia_smi: str | None) -> Seen | None:
    """What the driver showed, as typed or as nvidia-smi printed it."""
    from onecard.cli.files import read_text
    from onecard.plan.seen import Seen, read_nvidia_smi

    if nvidia_smi is None:
        return None if process_bytes is None else Seen(process_bytes=process_bytes)
    text = read_text(sys.stdin.buffer if nvidia_smi == "-" else Path(nvidia_smi), kind="nvidia-smi output")
    found = read_nvidia_smi(text)
    if found is None:
        raise UsageError(
            f"{nvidia_smi} shows no computing process",
            why="nvidia-smi lists processes of type C with their memory, and this text has none",
            fix="nvidia-smi | onecard plan CONFIG --nvidia-smi -",
            name="no-process-seen",
        )
    return found


def _write_timeline(name: str, memory: Memory, *, title: str) -> None:
    from onecard.cli.files import write_text
    from onecard.report.timeline import timeline_svg

    path = Path(name)
    if path.suffix.lower() != ".svg":
        raise UsageError(
            f"{path} is not an .svg file",
            why="the timeline is drawn as SVG, which every browser opens",
            fix=f"--timeline {path.stem or 'memory'}.svg",
            name="not-svg",
        )
    write_text(path, timeline_svg(memory, title=title), option="--timeline")


def _place(gpu: str | None, vram: int | None, other: int | None) -> Place | None:
    """The card that was named, or this machine's; None where there is none."""
    from onecard.machine import read_gpu
    from onecard.plan.cards import find_card, plain_card
    from onecard.plan.place import Place, place_of

    if gpu not in (None, "auto", "none"):
        return Place(card=find_card(gpu)).with_memory(vram_bytes=vram, other_bytes=other)
    if gpu == "auto" or (gpu is None and vram is None):
        status = read_gpu()
        if status:
            return place_of(status).with_memory(vram_bytes=vram, other_bytes=other)
        if gpu == "auto":
            raise MachineError(
                "no NVIDIA card answers on this machine",
                why="NVML, the driver's own interface, is not there or does not respond",
                fix='name the card to plan for: --gpu "RTX 4070"',
                name="no-gpu",
            )
    return Place(card=plain_card(vram), other_bytes=other or 0) if vram is not None else None


def _no_flags(flags: list[Flag], command: str) -> None:
    if flags:
        key, value = flags[0]
        raise UsageError(
            f"onecard {command} takes no config keys, and was given --{key}={value}",
            why="only commands that read a config take --key=value",
            fix=f"onecard {command} --help",
            name="unexpected-key",
        )


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # a pipe has no width of its own: wide enough that no line of ours breaks
    piped = not (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=120 if piped else None)
