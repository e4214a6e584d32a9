"""`--key=value` config flags, split from a command's own options before the command-line library sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Flag = tuple[str, str]


def split_flags(arguments: Sequence[str], options: Collection[str]) -> tuple[list[str], list[Flag]]:
    """(what is left, the flags): `--key=value` anywhere on the line is a flag unless --key is one of `options`."""
    rest: list[str] = []
    flags: list[Flag] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            rest.extend(arguments[position:])
            break
        name, equals, value = argument.partition("=")
        if equals and name.startswith("--") and len(name) > 2 and name not in options:
            flags.append((name[2:], value))
        else:
            rest.append(argument)
    return rest, flags
