"""Mistakes on the command line, in our three lines instead of the library's."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from shlex import quote

import click

from onecard.config.names import meant_by, nearest
from onecard.errors import UsageError


def usage_error(error: click.UsageError, typed: Sequence[str], group: click.Group) -> UsageError:
    """The three-line error for a problem that click found in the typed words after a group's name."""
    command = error.ctx.command_path if error.ctx else _command_path(typed, group)
    help_line = f"{command} --help"
    flags = [f"--{key}={value}" for key, value in (error.ctx.obj or ())] if error.ctx else []
    match error:
        case click.NoSuchOption(option_name=option):
            return _unknown_option(option, command, error.ctx, typed)
        case _ if card := _unquoted_card(typed):
            return UsageError(
                "a card's name with a space needs quotes",
                why=f"{card.split()[-1]} was read as a file",
                fix=f'--gpu "{card}"',
                name="unquoted-card",
            )
        case click.BadOptionUsage(option_name=option) if "requires an argument" in error.message:
            return UsageError(f"{option} needs a value after it", why="none was typed", fix=help_line)
        case click.BadParameter(param=click.Option(type=click.Choice())):
            said = error.format_message().removeprefix("Invalid value for ").rstrip(".").replace("'", "")
            return UsageError(said, why="these are all that it knows", fix=help_line)
        case click.MissingParameter():
            said = " ".join(error.format_message().split())  # click puts choices on separate lines
            return UsageError(said, why="the command needs it", fix=help_line)
        case click.BadParameter(param=click.Option(type=click.types.IntParamType()) as number):
            return _no_number(number, error.message, command, [*typed, *flags], kind="whole number", example="2")
        case click.BadParameter(param=click.Option(type=click.types.FloatParamType()) as number):
            return _no_number(number, error.message, command, [*typed, *flags], kind="number", example="0.5")
    return UsageError(error.format_message().rstrip("."), why=f"{command} was called this way", fix=help_line)


def _unquoted_card(typed: Sequence[str]) -> str:
    """`RTX 4070` for `--gpu RTX 4070`; "" where the words after --gpu do not make a card's name."""
    from onecard.plan.cards import matching_cards

    after = list(typed[typed.index("--gpu") + 1 :]) if "--gpu" in typed else []
    words = [word for word in after[:4] if not word.startswith("-")]
    names = (" ".join(words[:count]) for count in range(len(words), 1, -1))
    return next((name for name in names if matching_cards(name)), "")


def _no_number(
    option: click.Option, said: str, command: str, words: Sequence[str], *, kind: str, example: str
) -> UsageError:
    """The three-line error for `--hours two` or `--hours 2,5`, and for a number that is out of range."""
    name = next((each for each in option.opts if each in words), option.opts[-1])
    typed, no_number, _ = said.partition(" is not a valid ")
    if not no_number:
        value = said.partition(" is not in the range ")[0]
        return UsageError(f"{name} {value} is out of range", why=_range(option), fix=f"{command} --help")
    value = typed.strip("'")
    with_point = value.replace(",", ".")
    meant = with_point if kind == "number" and _is_number(with_point) else example
    again = [{value: meant, f"{name}={value}": f"{name}={meant}"}.get(word, word) for word in words]
    fix = " ".join(["onecard", *map(quote, again)]) if again != [*words] else f"{command} {name} {meant}"
    return UsageError(f"{name}: {typed} is not a {kind}", why=f"write it like {example}", fix=fix)


def _keys_of(context: click.Context | None) -> Collection[str]:
    """The config keys that a command takes; none for one that reads no config."""
    from onecard.cli.library import KeyCommand
    from onecard.config.schema import KEYS

    command = context.command if context else None
    if not isinstance(command, KeyCommand):
        return ()
    return KEYS if command.keys is None else command.keys


def _range(option: click.Option) -> str:
    """`it takes 1 or more`, `it takes more than 0, and at most 1440`"""
    kind = option.type
    assert isinstance(kind, (click.IntRange, click.FloatRange))
    least = "" if kind.min is None else f"more than {kind.min}" if kind.min_open else f"{kind.min} or more"
    most = "" if kind.max is None else f"less than {kind.max}" if kind.max_open else f"at most {kind.max}"
    return f"it takes {', and '.join(filter(None, [least, most]))}"


def _value_after(option: str, typed: Sequence[str]) -> str:
    """The word after an option, as it was typed; VALUE where there is none."""
    after = list(typed[typed.index(option) + 1 :]) if option in typed else []
    return quote(after[0]) if after and not after[0].startswith("-") else "VALUE"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _command_path(typed: Sequence[str], group: click.Group) -> str:
    """The typed command, such as `onecard data prepare`. click does not name it if an option lacks its value."""
    path: list[str] = ["onecard"]
    command: click.Command | None = group
    for word in typed:
        if isinstance(command, click.Group) and word in command.commands:
            path.append(word)
            command = command.commands[word]
    return " ".join(path)


def unknown_command(word: str, known: list[str], *, group: str = "onecard") -> UsageError:
    meant = nearest(word, known)
    return UsageError(
        f'there is no command "{word}"',
        why=f"the commands are {', '.join(known)}",
        fix=f"{group} {meant}" if meant else f"{group} --help",
        name="unknown-command",
    )


def _unknown_option(option: str, command: str, context: click.Context | None, typed: Sequence[str] = ()) -> UsageError:
    word = option.lstrip("-")
    key = nearest(word, _keys_of(context))
    if key and key == word.replace("-", "_"):
        return UsageError(
            f"{option} is a config key, and keys are written with =",
            why="as in nanoGPT, so that a value is never mistaken for a file",
            fix=f"{command} --{key}={_value_after(option, typed)}",
            name="key-without-value",
        )
    parameters = context.command.get_params(context) if context else []
    options = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
    meant, key = nearest(word, [name.lstrip("-") for name in options]), meant_by(word, "VALUE", _keys_of(context))
    return UsageError(
        f"{command} has no option {option}",
        why=f"its options are {', '.join(sorted(options))}",
        fix=f"did you mean --{meant or key} ?" if meant or key else f"{command} --help",
        name="unknown-option",
    )
