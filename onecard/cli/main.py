"""The entry point: splits config flags off, runs a command, turns every problem into three lines and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from onecard import __version__
from onecard.cli.commands import cli
from onecard.cli.flags import split_flags
from onecard.cli.library import INTERRUPTED
from onecard.cli.usage import usage_error
from onecard.errors import OnecardError

if TYPE_CHECKING:
    from rich.console import Console

BUG = 70  # what sysexits.h calls an internal software error; none of the contract's answers


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run onecard with `arguments` (default: the command line) and exit."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run onecard; returns the exit code."""
    rest, flags = split_flags(arguments, _option_names())
    try:
        code = cli.main(rest, prog_name="onecard", standalone_mode=False, obj=flags)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except OnecardError as error:
        return _fail(error, as_json="--json" in rest)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        return _fail(usage_error(error), as_json="--json" in rest)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # `onecard gpus | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # ours, not the user's: show everything, and where to take it
        traceback.print_exc()
        click.echo(f"error: this is a bug in onecard {__version__}, not a mistake of yours  [bug]", err=True)
        click.echo("  why: nothing a user types or feeds should end like this", err=True)
        click.echo("  fix: please report the lines above, with the command and the config", err=True)
        return BUG


def _option_names(command: click.Command = cli) -> set[str]:
    """The options of a command and of those below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {name for option in command.params for name in option.opts}
    return own.union(*map(_option_names, below))


def _fail(error: OnecardError, *, as_json: bool) -> int:
    from onecard.report.talk import print_error

    if as_json:
        click.echo(json.dumps(error.as_json()))
    else:
        print_error(error, _stderr())
    return error.exit_code


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)
