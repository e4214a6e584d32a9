"""A folder to prepare into: locked while we work in it, and how far its preparation is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from onecard.data.folders import PROGRESS
from onecard.data.learn import good_hashes
from onecard.data.manifest import Progress, Settings, read_progress
from onecard.data.sources import Source
from onecard.data.split import share_with_some, val_share
from onecard.errors import ConfigError
from onecard.files import free_name, half_written, writing
from onecard.runs.lock import InUse, Lock

_LOCK = "lock"
_OTHER_FOLDER = "choose another folder with --out DIR"


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Inside, the folder exists and is locked for us; errors of the disk become our errors of three lines."""
    with writing(folder, instead=_OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder / _LOCK)
    except InUse as problem:
        raise ConfigError(
            f"{folder} is in use: {problem.holder} is preparing data there",
            why="two processes would write to the same files",
            fix=f"wait for it, stop it, or {_OTHER_FOLDER}",
            name="data-in-use",
        ) from problem
    try:
        with writing(folder, instead=_OTHER_FOLDER):
            yield
    finally:
        lock.close()


def where_it_stands(folder: Path, source: Source, settings: Settings, tokens: int | None) -> Progress:
    """Where to continue: the progress in the folder, or the beginning. ConfigError if the folder is for other data."""
    before = read_progress(folder)
    ours = (_LOCK, half_written(folder / PROGRESS).name)
    if before is None and (others := sorted(path.name for path in folder.iterdir() if path.name not in ours)):
        raise ConfigError(
            f"{folder} is not empty",
            why=f"it has {', '.join(others[:3])}{' …' if len(others) > 3 else ''}, but no preparation to continue",
            fix=f"--out {free_name(folder)}",
            name="folder-not-empty",
        )
    if before is None or not before.counts.kept:
        for left in folder.glob("*.part"):  # left by an attempt that kept no document
            left.unlink()
        share = _share(source, settings, tokens) if settings.val_share is None else settings.val_share
        return Progress(settings=asdict(replace(settings, val_share=share)))
    now = asdict(settings) | ({"val_share": before.settings["val_share"]} if settings.val_share is None else {})
    changed = [
        f"{key}={now[key]} (was {before.settings.get(key)})" for key in now if now[key] != before.settings.get(key)
    ]
    if changed or before.files != source.digest(before.place[0] + 1):
        raise ConfigError(
            f"{folder} holds other data" + (f": {', '.join(changed)}" if changed else ""),
            why="a folder holds one source, prepared in one way"
            + ("" if changed else "; files it was made from are gone or changed, or there are new ones between them"),
            fix=f"--out {free_name(folder)}",
            name="other-preparation",
        )
    return before


def _share(source: Source, settings: Settings, tokens: int | None) -> float:
    """The share for validation; at least one document if all are wanted, and are here to be read twice."""
    share = val_share(source, tokens)
    is_here = all(file.path is not None and file.size_bytes is not None for file in source.files)
    if not is_here or (tokens is not None and tokens < (source.text_bytes or 0)):
        return share
    return share_with_some(share, good_hashes(source.files, column=settings.column))


def is_all(progress: Progress, source: Source, tokens: int | None) -> bool:
    """Whether a finished preparation has nothing left to do. Standard input may always have more."""
    if tokens is not None and progress.tokens >= tokens:
        return True
    return progress.files_read == len(source.files) and source.size_bytes is not None
