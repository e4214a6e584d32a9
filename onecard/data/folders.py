"""Where a data set is. This module is light: a plan uses it without importing NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onecard.config.paths import expanded
from onecard.errors import OnecardError, unless_machine_failed
from onecard.opening import cannot_read

META, PROGRESS = "meta.json", "progress.json"  # in a folder that `onecard data prepare` made
DATATROVE, MEGATRON = ".ds", ".idx"  # the end of a token file of datatrove; of an index of Megatron, beside its .bin
INDEX, METADATA, LOSS_MASK = ".index", ".metadata", ".loss"  # after the name of a .ds file
SPLIT_FOLDERS = ("train", "val", "valid", "validation")  # where datatrove's and Megatron's files may lie, too
SEARCH = (Path("data"), Path())


def find_data(name_or_path: str, *, search: Sequence[Path] = SEARCH) -> Path | None:
    """The first folder of that name below one of `search` that holds token files; None if there is none.

    Or the token file that is named, if it has an index of its documents: in Megatron's manner also without its end.
    """
    return next((found for place in search if (found := _data_at(place / expanded(name_or_path)))), None)


def folder_names(search: Sequence[Path] = SEARCH) -> list[str]:
    """The names of all folders below `search` that hold token files."""
    found = []
    for place in search:
        with suppress(OnecardError):
            for child in _children(place):
                with suppress(OnecardError):
                    found += [child.name] * _has_tokens(child)
    return found


def _data_at(path: Path) -> Path | None:
    if _has_tokens(path):
        return path
    try:
        if path.suffix == DATATROVE:
            return path if path.is_file() else None
        tokens = path.with_suffix(".bin") if path.suffix in (".bin", MEGATRON) else Path(f"{path}.bin")
        return tokens if tokens.with_suffix(MEGATRON).is_file() else None
    except (OSError, ValueError) as problem:
        return unless_machine_failed(problem, None)


def _has_tokens(folder: Path) -> bool:
    return any(
        path.name in (META, PROGRESS)
        or path.suffix in (".bin", DATATROVE, MEGATRON)
        or (path.name in SPLIT_FOLDERS and any(each.suffix in (MEGATRON, DATATROVE) for each in _children(path)))
        for path in _children(folder)
    )


def _children(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it is not a folder. OnecardError if the system fails to say."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError) as problem:
        if unread := cannot_read(folder, problem):
            raise unread from problem
        return []
