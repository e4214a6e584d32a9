"""Files named by options: written completely, or an error that says why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click

from onecard.config.paths import expanded, refuse_empty
from onecard.errors import DISK_FULL, ConfigError, MachineError, UsageError
from onecard.files import cannot_write, free_name, free_path, half_written
from onecard.inputs.text import THERE


class PathType(click.ParamType):  # type: ignore[type-arg]  # generic in click >= 8.5 only
    """The name of a file or folder, as text: never empty, with ~ expanded."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        named = _as_typed(param)
        refuse_empty(named, value)
        if value.startswith("--"):
            raise UsageError(
                f"{named} needs the name of a file or folder",
                why=f"{value}, which follows it, is an option",
                fix=f"{named} NAME {value}, or {named} ./{value} if that is the file's name",
                name="no-name",
            )
        return expanded(value)


def _as_typed(param: click.Parameter) -> str:
    """`--write`, `CONFIG`"""
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


def without_config() -> str:
    """What to type if the config does not exist: the same command without it."""
    context = click.get_current_context(silent=True)
    command = context.command_path if context else "onecard plan"
    if context and any("--config" in param.opts for param in context.command.params):
        return f"{THERE}, or {command} without --config"
    return f"{command} (without a file) uses a small default config"


def check_svg(path: str, *, option: str) -> None:
    """Refuse a file name that does not end in .svg."""
    if Path(path).suffix.lower() != ".svg":
        named = f"{Path(path).stem or 'drawn'}.svg"
        raise UsageError(
            f"{path} is not an .svg file",
            why=f"{option} draws an SVG file, which every browser can open",
            fix=f"{option} {quote(named)}",
            name="not-svg",
        )


def write_text(path: Path, text: str, *, option: str, overwrite: bool = True) -> None:
    """Write a file named by `option`; without `overwrite`, an existing file is never touched."""
    write_bytes(path, text.encode(), option=option, overwrite=overwrite)


def _create(path: Path, content: bytes, *, mode: str = "xb") -> None:
    """Create a file; delete it again if it cannot be written completely."""
    with path.open(mode) as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:
            path.unlink()
            raise


def write_bytes(path: Path, content: bytes, *, option: str, overwrite: bool = True) -> None:
    """Write bytes to a file named by `option`. On a full disk the old content stays."""
    with _named_by(option, path):
        if not overwrite:
            _create(path, content)
        elif path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
            path.write_bytes(content)
        else:
            whole = path.resolve()  # a link stays a link
            temporary = half_written(whole)
            _create(temporary, content, mode="wb")
            temporary.replace(whole)


def check_new(path: Path, *, again: str) -> None:
    """Refuse to put a whole folder or file where something is; an empty folder may be replaced. `again` NAME is new."""
    why, instead = "an export or import never overwrites anything", free_path(path)
    if path.is_dir() and not any(path.iterdir()):
        if not path.is_mount() and not path.samefile(Path()):
            return
        why, instead = "a whole folder is put there at once, which cannot take the place of this one", path / "new"
    elif not path.exists():
        return
    raise ConfigError(f"{path} exists already", why=why, fix=f"{again}{quote(str(instead))}", name="file-exists")


def check_writable(path: Path, *, option: str) -> None:
    """Refuse a file that cannot be written, before its content is computed. Nothing is changed."""
    with _named_by(option, path):
        if path.is_fifo():  # opening a pipe waits for its reader
            return
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.resolve().unlink()


@contextmanager
def _named_by(option: str, path: Path) -> Iterator[None]:
    """A context in which the system's errors about a file named by `option` become three lines."""
    try:
        yield
    except FileExistsError as problem:
        raise ConfigError(
            f"{path} already exists",
            why=f"{option} never overwrites one of your configs",
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
