"""Files that options name: written whole, or three lines saying why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click

from onecard.ask.text import THERE
from onecard.config.paths import expanded, refuse_empty
from onecard.errors import ConfigError, MachineError, UsageError
from onecard.runs.files import DISK_FULL, cannot_write, free_name, half_written


class PathType(click.ParamType):  # type: ignore[type-arg]  # generic in click >= 8.5 only
    """The name of a file or folder, as text: never empty, ~ expanded."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        named = _as_typed(param)
        refuse_empty(named, value)
        if value.startswith("--"):
            raise UsageError(
                f"{named} needs the name of a file or folder",
                why=f"{value} behind it is an option",
                fix=f"{named} NAME {value}, or {named} ./{value} if that is its name",
                name="no-name",
            )
        return expanded(value)


def _as_typed(param: click.Parameter) -> str:
    """`--write`, `CONFIG`"""
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


def without_config() -> str:
    """What to type instead of the config that is not there: the command that was typed, without it."""
    context = click.get_current_context(silent=True)
    command = context.command_path if context else "onecard plan"
    if context and any("--config" in param.opts for param in context.command.params):
        return f"{THERE}, or {command} without --config"
    return f"{command} (with no file) takes a small default"


def check_svg(path: str, *, option: str) -> None:
    """Refuse a name that says another kind of picture than the one that is drawn."""
    if Path(path).suffix.lower() != ".svg":
        named = f"{Path(path).stem or 'drawn'}.svg"
        raise UsageError(
            f"{path} is not an .svg file",
            why=f"{option} draws SVG, which every browser opens",
            fix=f"{option} {quote(named)}",
            name="not-svg",
        )


def write_text(path: Path, text: str, *, option: str, overwrite: bool = True) -> None:
    """Write a file that `option` named; without `overwrite`, a file that exists is never touched."""
    write_bytes(path, text.encode(), option=option, overwrite=overwrite)


def _create(path: Path, content: bytes, *, mode: str = "xb") -> None:
    """Make a file, and take it away again if it cannot be written to its end."""
    with path.open(mode) as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:
            path.unlink()
            raise


def write_bytes(path: Path, content: bytes, *, option: str, overwrite: bool = True) -> None:
    """The same for what is no text: all of it, or on a full disk what was there before."""
    with _named_by(option, path):
        if not overwrite:
            _create(path, content)
        elif path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
            path.write_bytes(content)
        else:
            whole = path.resolve()  # a link stays one
            temporary = half_written(whole)
            _create(temporary, content, mode="wb")
            temporary.replace(whole)


def check_writable(path: Path, *, option: str) -> None:
    """Refuse a file that cannot be written, before what it is to hold has taken its time; nothing is changed."""
    with _named_by(option, path):
        if path.is_fifo():  # to open one waits for its reader
            return
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.resolve().unlink()


@contextmanager
def _named_by(option: str, path: Path) -> Iterator[None]:
    """Inside, what the system says of a file that `option` named becomes three lines."""
    try:
        yield
    except FileExistsError as problem:
        raise ConfigError(
            f"{path} exists already",
            why=f"{option} never writes over a config of yours",
            fix=f"{option} {free_name(path)}",
            name="file-exists",
        ) from problem
    except (OSError, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno in DISK_FULL:
            raise cannot_write(path, problem) from problem
        raise MachineError(
            f"cannot write {path}",
            why=getattr(problem, "strerror", None) or str(problem),
            fix=f"{option} {quote(path.name or 'file')} writes into this folder",
            name="cannot-write",
        ) from problem
