"""What the commands share: click's classes fitted to our flags, sizes and errors, and the consoles they print to."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from onecard.cli.flags import Flag
from onecard.cli.usage import unknown_command
from onecard.errors import MachineError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from onecard.plan.place import Place


class Commands(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown_command(args[0], self.list_commands(ctx), group=ctx.command_path)
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
        from onecard.units import MIB, parse_bytes, with_point

        if isinstance(value, int):
            return value
        option = param.opts[0]
        try:
            size = parse_bytes(value)
            has_unit, is_zero = value.strip()[-1].isalpha(), not value.strip(" 0.")
            if has_unit or is_zero or size >= MIB:
                return size
            example = f"{value.strip()}{'GiB' if size <= MOST_GIB_OF_A_CARD else 'MiB'} ?"  # 12, or 4464
        except ValueError:
            meant = with_point(value, parse=parse_bytes)
            example = f"{meant} ?" if meant else "2.1GiB (or 2150MiB)"
        raise UsageError(
            f"{value!r} is not a size",
            why=f"{option} takes a number and a unit",
            fix=f"{option} {example}",
            name="bad-size",
        )


class CountType(click.ParamType):  # type: ignore[type-arg]
    """A number of things: 124M, 10B, 524288."""

    name = "count"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from onecard.units import parse_count, with_point

        try:
            return value if isinstance(value, int) else parse_count(value)
        except ValueError:
            meant = with_point(value, parse=parse_count)
            raise UsageError(
                f"{value!r} is not a number",
                why=f"{param.opts[0]} takes a number, with M or B if it is large",
                fix=f"{param.opts[0]} {f'{meant} ?' if meant else '124M'}",
                name="bad-number",
            ) from None


MOST_GIB_OF_A_CARD = 288  # a bare number up to here is meant in GiB

INTERRUPTED = 130  # exit code

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")


def place_here(device: str = "auto") -> Place | None:
    """This machine's card `device` (auto, cuda, cuda:1), with what other programs hold now; None if NVML knows none."""
    from onecard.machine import read_gpu
    from onecard.plan.place import place_of

    number = device.partition(":")[2]
    status = read_gpu(int(number) if number.isdecimal() else 0)
    return place_of(status) if status else None


def needs_torch(why: str) -> None:
    """MachineError unless torch is installed; it is not imported yet."""
    if find_spec("torch") is None:
        raise MachineError("torch is not installed", why=why, fix='pip install "onecard[train]"', name="no-torch")


def no_flags(flags: list[Flag], command: str) -> None:
    if flags:
        key, value = flags[0]
        raise UsageError(
            f"onecard {command} takes no config keys, and was given --{key}={value}",
            why="only commands that read a config take --key=value",
            fix=f"onecard {command} --help",
            name="unexpected-key",
        )


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: its answer, or with `stderr` its talk."""
    from onecard.report.console import PlainConsole

    # a pipe has no width of its own: wide enough that no line of ours breaks
    piped = not (sys.stderr if stderr else sys.stdout).isatty()
    return PlainConsole(stderr=stderr, width=120 if piped else None)
