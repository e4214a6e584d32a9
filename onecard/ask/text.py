"""Text of files as they are named: a page of it, or three lines saying why not."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import BinaryIO

from onecard.config.names import nearest
from onecard.config.reader import MAX_FILE_BYTES
from onecard.errors import ConfigError

THERE = "name a file that is there"


def read_text(source: Path | BinaryIO, *, kind: str = "config file", otherwise: str = THERE) -> str:
    """The text of a file, at most 64 KiB of it ever read, whatever it is.

    `otherwise` is what to do where there is none and none is near.
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
            fix=neighbour(Path(name), otherwise=otherwise),
            name="no-such-file",
        ) from problem
    except (OSError, ValueError) as problem:
        raise _unreadable(name, kind, getattr(problem, "strerror", None) or str(problem)) from problem
    if len(raw) > MAX_FILE_BYTES:
        raise _unreadable(
            name, kind, f"it is larger than {MAX_FILE_BYTES // 1024} KiB, and this should be a page of text"
        )
    if b"\0" in raw:
        raise _unreadable(name, kind, "it is a binary file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _unreadable(name, kind, f"byte {problem.start} is not UTF-8 text") from problem


def _unreadable(name: str, kind: str, why: str) -> ConfigError:
    example = "such as config/train_gpt2.py; a checkpoint or data file is none" if kind == "config file" else "as text"
    return ConfigError(
        f"{name} cannot be read as a {kind}", why=why, fix=f"name a {kind}, {example}", name="unreadable-file"
    )


def neighbour(path: Path, *, otherwise: str) -> str:
    """The file that was probably meant."""
    try:
        known = sorted(found.name for found in path.parent.iterdir())
    except OSError:
        known = []
    meant = nearest(path.name, known)
    return f"did you mean {quote(str(path.parent / meant))} ?" if meant else otherwise
