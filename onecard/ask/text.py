"""The text of a file a user names, or three lines saying why it cannot be read."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import BinaryIO

from onecard.config.names import nearest
from onecard.config.reader import MAX_FILE_BYTES
from onecard.errors import ConfigError

THERE = "name a file that exists"
CONFIG_FILE = "config file"
CONFIG_FOLDERS = ("config", "configs", ".")  # where nanoGPT, we and most people keep them
MOST_SHOWN, MOST_READ = 3, 100  # files


def read_text(source: Path | BinaryIO, *, kind: str = CONFIG_FILE, otherwise: str = THERE) -> str:
    """The text of a file; never more than 64 KiB of it are read.

    `otherwise` is the fix where the file is missing and no similar one is found.
    """
    name = str(source) if isinstance(source, Path) else "standard input"
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        else:
            raw = source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"there is no file {name}",
            why=f"looked for a {kind} from the folder {Path.cwd().name}/",
            fix=nearby_config(Path(name), otherwise=otherwise)
            if kind == CONFIG_FILE
            else neighbour(Path(name), otherwise=otherwise),
            name="no-such-file",
        ) from problem
    except (OSError, ValueError) as problem:
        raise _unreadable(name, kind, getattr(problem, "strerror", None) or str(problem)) from problem
    if len(raw) > MAX_FILE_BYTES:
        raise _unreadable(
            name, kind, f"it is larger than {MAX_FILE_BYTES // 1024} KiB, far too long for a page of text"
        )
    if b"\0" in raw:
        raise _unreadable(name, kind, "it is a binary file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _unreadable(name, kind, f"byte {problem.start} is not UTF-8 text") from problem


def _unreadable(name: str, kind: str, why: str) -> ConfigError:
    example = "such as config/train_gpt2.py; not a checkpoint or data file" if kind == CONFIG_FILE else "as text"
    return ConfigError(
        f"{name} cannot be read as a {kind}", why=why, fix=f"name a {kind}, {example}", name="unreadable-file"
    )


def nearby_config(path: Path, *, otherwise: str) -> str:
    """The config file that was probably meant, or those there are: beside `path`, in config/, configs/ and here."""
    folders = dict.fromkeys(Path(folder) for folder in (path.parent, *CONFIG_FOLDERS))
    files = [file for folder in folders for file in _python_files(folder)]
    configs = [file for file in files[:MOST_READ] if _sets_a_key(file)]
    meant = nearest(path.name, [file.name for file in configs])
    if meant:
        found = next(file for file in configs if file.name == meant)
        return f"did you mean {quote(str(found))} ?"
    if not configs:
        return otherwise
    shown = ", ".join(quote(str(file)) for file in configs[:MOST_SHOWN])
    more = f" and {len(configs) - MOST_SHOWN} more" if len(configs) > MOST_SHOWN else ""
    instead = otherwise.removeprefix(THERE).removeprefix(", or ")
    return f"name a config file: {shown}{more}" + (f"; or {instead}" if instead else "")


def _python_files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.py"))
    except (OSError, ValueError):
        return []


def _sets_a_key(file: Path) -> bool:
    """Whether a Python file sets a config key: model.py and the like do not."""
    from onecard.config.reader import NotAConfig, read_config
    from onecard.config.schema import KEYS

    try:
        read = read_config(read_text(file), {})
    except (ConfigError, NotAConfig):
        return False
    return not KEYS.keys().isdisjoint(read.lines)


def neighbour(path: Path, *, otherwise: str) -> str:
    """The file beside `path` that was probably meant."""
    try:
        known = sorted(found.name for found in path.parent.iterdir())
    except OSError:
        known = []
    meant = nearest(path.name, known)
    return f"did you mean {quote(str(path.parent / meant))} ?" if meant else otherwise
