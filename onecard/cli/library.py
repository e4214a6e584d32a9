"""What the commands share: click's classes adapted to our flags, sizes and errors, and the consoles they print to."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onecard.cli.flags import Flag
from onecard.cli.usage import unknown_command
from onecard.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class Commands(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown_command(args[0], self.list_commands(ctx), group=ctx.command_path)
        return super().resolve_command(ctx, args)


class KeyCommand(click.Command):
    """A command that also takes --key=value flags, and completes them in the shell: those of `keys`, None for all."""

    def __init__(self, *args: Any, keys: Collection[str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.keys = keys

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from onecard.config.schema import KEYS

        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--"):
            taken = {name: key for name, key in KEYS.items() if self.keys is None or name in self.keys}
            flags = {f"--{name}=": key.meaning for name, key in taken.items()}
            offered += [CompletionItem(flag, help=said) for flag, said in flags.items() if flag.startswith(incomplete)]
        return offered

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        # completion parses the raw line with its flags; everywhere else they are split off first
        if extra.get("resilient_parsing"):
            extra["ignore_unknown_options"] = extra["allow_extra_args"] = True
        return super().make_context(info_name, args, parent, **extra)


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic in click >= 8.5 only
    """A size in bytes: 4464MiB, 2.1GiB, 12GB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from onecard.units import NotAnAmount, typed_bytes

        try:
            return value if isinstance(value, int) else typed_bytes(value)
        except NotAnAmount as problem:
            raise UsageError(
                f"{value!r} is not a size",
                why=f"{param.opts[0]} takes a number and a unit",
                fix=f"{param.opts[0]} {f'{problem.meant} ?' if problem.meant else '2.1GiB (or 2150MiB)'}",
                name="bad-size",
            ) from None


class HoursType(click.types.FloatParamType):
    """A number of hours: 48, 0.5, 48h."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number: Any = value.strip().removesuffix("h") if isinstance(value, str) else value
        return super().convert(number, param, ctx)


class CountType(click.ParamType):  # type: ignore[type-arg]
    """A number of things: 124M, 10B, 524288."""

    name = "count"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from onecard.units import NotAnAmount, typed_count

        try:
            return value if isinstance(value, int) else typed_count(value)
        except NotAnAmount as problem:
            raise UsageError(
                f"{value!r} is not a number",
                why=f"{param.opts[0]} takes a number, with M or B if it is large",
                fix=f"{param.opts[0]} {f'{problem.meant} ?' if problem.meant else '124M'}",
                name="bad-number",
            ) from None


best_option = click.option(
    "--best", is_flag=True, help="The checkpoint with the lowest validation loss, not the newest."
)
checkpoint_option = click.option(
    "--checkpoint", metavar="WHICH", help="best, last (the newest, the default), or the step of a checkpoint."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")


def needs_torch(why: str) -> None:
    """MachineError unless torch is installed; it is not imported yet."""
    from onecard.inputs.before_run import torch_missing

    if missing := torch_missing(why):
        raise missing


def the_one(name: str, value: T | None, other_name: str, other: T | None) -> T | None:
    """The value of one of two names for the same thing; UsageError where both have one."""
    if value is not None and other is not None:
        raise UsageError(
            f"{name} and {other_name} are both given",
            why="they are two names for the same thing",
            fix=f"leave {other_name} out",
        )
    return other if value is None else value


def which_checkpoint(checkpoint: str | None, *, best: bool) -> str:
    """What --checkpoint and --best ask for: best, last or a step."""
    return the_one("--checkpoint", checkpoint, "--best", "best" if best else None) or "last"


def no_flags(flags: list[Flag], command: str) -> None:
    if flags:
        key, value = flags[0]
        raise UsageError(
            f"onecard {command} takes no config keys, but was given --{key}={value}",
            why="only commands that read a config take --key=value",
            fix=f"onecard {command} --help",
            name="unexpected-key",
        )


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: its result, or with `stderr` everything else it says."""
    from onecard.report.console import PlainConsole

    # a pipe has no width of its own: 100 columns, unless COLUMNS says otherwise
    piped = not (sys.stderr if stderr else sys.stdout).isatty()
    return PlainConsole(stderr=stderr, width=100 if piped and "COLUMNS" not in os.environ else None)
