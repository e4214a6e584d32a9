"""Where the folder of a data set is. This module is light: a plan uses it without importing NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onecard.config.paths import expanded

META, PROGRESS = "meta.json", "progress.json"  # in a folder that `onecard data prepare` made
SEARCH = (Path("data"), Path())


def find_folder(name_or_path: str, *, search: Sequence[Path] = SEARCH) -> Path | None:
    """The first folder of that name below one of `search` that holds token files; None if there is none."""
    folders = (place / expanded(name_or_path) for place in search)
    return next((folder for folder in folders if _has_tokens(folder)), None)


def folder_names(search: Sequence[Path] = SEARCH) -> list[str]:
    """The names of all folders below `search` that hold token files."""
    return [child.name for place in search for child in _children(place) if _has_tokens(child)]


def _has_tokens(folder: Path) -> bool:
    return any(path.name in (META, PROGRESS) or path.suffix == ".bin" for path in _children(folder))


def _children(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it is not a folder or cannot be read."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []
