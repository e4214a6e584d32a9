"""The text of a file a user names, or three lines saying why it cannot be read."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import BinaryIO

from onecard.config.names import nearest_file
from onecard.config.reader import MAX_FILE_BYTES
from onecard.errors import ConfigError
from onecard.opening import cannot_read, open_file

THERE = "name a file that exists"
CONFIG_FILE = "config file"


def read_text(source: Path | BinaryIO, *, kind: str = CONFIG_FILE, otherwise: str = THERE) -> str:
    """The text of a file; never more than 64 KiB of it are read.

    `otherwise` is the fix where the file is missing and no similar one is found.
    """
    name = str(source) if isinstance(source, Path) else "standard input"
    try:
        if isinstance(source, Path):
            with open_file(source) as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        else:
            raw = source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as problem:
        from onecard.inputs.nearby import nearby_config  # which reads texts, too

        raise ConfigError(
            f"there is no file {name}",
            why=f"looked for a {kind} from the folder {Path.cwd().name}/",
            fix=nearby_config(Path(name), otherwise=otherwise)
            if kind == CONFIG_FILE
            else neighbour(Path(name), otherwise=otherwise),
            name="no-such-file",
        ) from problem
    except IsADirectoryError as problem:
        raise _a_folder(Path(name), kind) from problem
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        raise cannot_read(name, problem) or _unreadable(name, kind, why) from problem
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


def _a_folder(path: Path, kind: str) -> ConfigError:
    inside = sorted(path.glob("*.py" if kind == CONFIG_FILE else "*.txt"))
    fix = f"name a file in it: {quote(str(inside[0]))}" if inside else f"name a {kind}"
    return ConfigError(f"{path} is a folder", why=f"a {kind} is needed here", fix=fix, name="unreadable-file")


def neighbour(path: Path, *, otherwise: str) -> str:
    """The file beside `path` that was probably meant."""
    try:
        known = sorted(found.name for found in path.parent.iterdir())
    except OSError:
        known = []
    meant = nearest_file(path.name, known)
    return f"did you mean {quote(str(path.parent / meant))} ?" if meant else otherwise
