"""The entry point: splits config flags off, runs a command, turns every problem into three lines and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from errno import EACCES, ELOOP, ENAMETOOLONG, EPERM, EPIPE
from pathlib import Path
from typing import NoReturn

import click

from onecard import __version__
from onecard.cli import signals
from onecard.cli.commands import cli
from onecard.cli.flags import Flag, split_flags
from onecard.cli.library import console
from onecard.cli.signals import INTERRUPTED
from onecard.cli.streams import prepare_streams
from onecard.cli.usage import usage_error
from onecard.errors import (
    DISK_FULL,
    ConfigError,
    MachineError,
    OfAnotherRank,
    OnecardError,
    fault_behind,
    is_out_of_memory,
    out_of_memory,
    system_failed,
)
from onecard.visible import visible

UNUSABLE = (ENAMETOOLONG, EACCES, EPERM, ELOOP)  # what the operating system says when it cannot look up a name
BUG = 70  # what sysexits.h calls an internal software error; not one of the contract's codes


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run onecard with `arguments` (default: the command line) and exit."""
    prepare_streams()
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    if "TORCHELASTIC_RUN_ID" in os.environ and "onecard.train.meeting" in sys.modules:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)  # torch's threads, which connect ranks, abort some processes that Python takes down
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run onecard; returns the exit code."""
    code = 0
    try:
        code = _answer(*split_flags(arguments, _option_names()))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `onecard gpus --json | head -c1`: the reader has seen enough
        _stop_writing()
        return code
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
        _stop_writing()
        return _fail(_no_space(problem), as_json=False)


def _answer(rest: list[str], flags: list[Flag]) -> int:
    """The exit code of a command; every problem is reported, except those of writing the output."""
    try:
        code = cli.main(rest, prog_name="onecard", standalone_mode=False, obj=flags)
        return code if isinstance(code, int) else 0
    except OnecardError as error:
        return INTERRUPTED if signals.heard else _fail(error, as_json="--json" in rest)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        return _fail(usage_error(error, rest, cli), as_json="--json" in rest)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except SystemExit:
        # click's: after completing a line; or, with 1, which here would mean "no", because the reader has gone
        if "_ONECARD_COMPLETE" in os.environ:
            raise
        raise BrokenPipeError from None
    except Exception as problem:  # a bug of ours, unless the machine is the cause: show everything
        if isinstance(problem, RuntimeError) and str(problem).startswith("Symlink loop"):  # pathlib's word for it
            problem = OSError(ELOOP, os.strerror(ELOOP), str(problem).partition(" from ")[2].strip("'"))
        if isinstance(problem, OSError) and problem.errno in (EPIPE, *DISK_FULL):
            raise
        if signals.heard:  # the exception of a signal was lost on its way, and this one followed
            return INTERRUPTED
        if is_out_of_memory(problem):
            problem.__traceback__ = None  # what its frames hold is needed to say so
            return _fail(out_of_memory(problem), as_json="--json" in rest)
        if isinstance(problem, OSError) and (problem.errno in UNUSABLE or _is_working_folder_gone()):
            return _fail(_unusable(problem), as_json="--json" in rest)
        if isinstance(problem, OSError):
            return _fail(system_failed(problem), as_json="--json" in rest)
        click.echo(visible(traceback.format_exc()), err=True, nl=False)
        click.echo(f"error: this is a bug in onecard {__version__}, not a mistake of yours  [bug]", err=True)
        click.echo("  why: nothing a user types or feeds should end like this", err=True)
        click.echo("  fix: please report the lines above, with the command and the config", err=True)
        return BUG


def _option_names(command: click.Command = cli) -> set[str]:
    """The options of a command and of those below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {name for option in command.params for name in option.opts}
    return own.union(*map(_option_names, below))


def _stop_writing() -> None:
    """Discard what is still in standard output's buffer, so that Python does not complain at exit."""
    from onecard.report.console import discard

    discard(sys.stdout.fileno())


def _no_space(problem: OSError) -> MachineError:
    return MachineError(
        f"cannot write {problem.filename or 'the output'}",
        why=problem.strerror or str(problem),
        fix="free some space on that disk, or write to another",
        name="disk-full",
    )


def _is_working_folder_gone() -> bool:
    try:
        Path.cwd()
    except OSError:
        return True
    return False


def _unusable(problem: OSError) -> ConfigError:
    """What was named cannot even be looked at: a name too long, a folder that is closed to us or gone."""
    named = str(problem.filename or "the working folder")
    return ConfigError(
        f"{named if len(named) <= 80 else named[:77] + '...'} cannot be used",
        why=problem.strerror or str(problem),
        fix="name another, or fix its permissions (ls -ld shows them)"
        if problem.filename
        else "cd to one that is there",
        name="unusable-path",
    )


def _fail(error: OnecardError, *, as_json: bool) -> int:
    from onecard.cli.torchrun import is_told
    from onecard.report.messages import print_error

    fault = fault_behind(error)
    if isinstance(error, OfAnotherRank) or (not fault and is_told(error)):
        return error.exit_code
    if fault and error.exit_code != MachineError.exit_code:  # what was named is not to blame, and may be whole
        error = system_failed(fault)
    if as_json:
        click.echo(json.dumps(error.as_json()))
    else:
        with suppress(OSError):  # nobody can read it; the exit code says it
            print_error(error, console(stderr=True))
    return error.exit_code
