"""The bytes of a config file as text, or three lines saying why not."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from onecard.config.reader import MAX_FILE_BYTES
from onecard.errors import ConfigError


def read_config_text(source: Path | BinaryIO) -> str:
    """The text of a config file, at most 64 KiB of it ever read."""
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
            why=f"looked in {Path.cwd().name}/"
            if isinstance(source, Path) and not source.is_absolute()
            else "it does not exist",
            fix=_neighbour(source) if isinstance(source, Path) else "onecard plan",
            name="no-such-config",
        ) from problem
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise ConfigError(
            f"cannot read {name}",
            why=reason,
            fix="name a nanoGPT config file, such as config/train_gpt2.py",
            name="unreadable-config",
        ) from problem
    if len(raw) > MAX_FILE_BYTES:
        raise _not_text(name, f"it is larger than {MAX_FILE_BYTES // 1024} KiB, and a config is a page of text")
    if b"\0" in raw:
        raise _not_text(name, "it is a binary file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _not_text(name, f"byte {problem.start} is not UTF-8 text") from problem


def _not_text(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name} is not a config file",
        why=why,
        fix="name a nanoGPT config file, such as config/train_gpt2.py (a checkpoint or data file is not one)",
        name="unreadable-config",
    )


def _neighbour(path: Path) -> str:
    """A config file that was probably meant."""
    from onecard.config.names import nearest

    try:
        known = sorted(found.name for found in path.parent.glob("*.py"))
    except OSError:
        known = []
    meant = nearest(path.name, known)
    return f"onecard plan {path.parent / meant}" if meant else "onecard plan (with no file) plans a small default"
