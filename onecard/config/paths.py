"""Paths as people type them: an empty one is a mistake, and ~ is the home folder wherever it stands on the line."""

from __future__ import annotations

from pathlib import Path

from onecard.errors import ConfigError


def refuse_empty(option: str, value: str | None) -> None:
    """ConfigError where an option, an argument or a key was given an empty path."""
    if value is not None and not value.strip():
        raise ConfigError(
            f"{option} is empty",
            why="no file or folder has an empty name; is a shell variable unset?",
            fix=f"name a path after {option}, or leave it out" if option.startswith("-") else f"name {option}",
            name="empty-path",
        )


def expanded(text: str) -> str:
    """`~/runs/x` as a path below the home folder, which shells do not expand after `=`; other text unchanged."""
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:  # ~nobody: a folder of that name, for all we know
        return text
