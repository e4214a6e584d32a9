"""The runs and logs under the paths that were named. A page asks by id: no path ever comes from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from onecard.errors import ConfigError
from onecard.opening import open_file
from onecard.runs.folder import CHECKPOINTS, CONFIG, RECORDS, runs_in
from onecard.runs.scores import SCORES


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run folder, or a log file, which may hold several runs."""

    path: Path
    root: Path  # what was named: nothing outside it is read
    is_folder: bool

    @property
    def id(self) -> str:
        """The same after a restart, and nothing that a path could be made of."""
        return sha256(os.fsencode(self.path.absolute())).hexdigest()[:12]

    @property
    def records(self) -> Path:
        """The file that grows while the run trains."""
        return self.path / RECORDS if self.is_folder else self.path

    @property
    def is_inside(self) -> bool:
        """Whether it lies in what was named, all links followed."""
        return (
            self._inside(self.path, self.path / RECORDS, self.path / CONFIG)
            if self.is_folder
            else self._inside(self.path)
        )

    def _inside(self, *files: Path) -> bool:
        root = self.root.resolve()
        return all(file.resolve().is_relative_to(root) for file in files)

    def stamp(self) -> tuple[int, int]:
        """Size and time of its records and scores, which change with every one; zeros where there are none yet."""
        size, changed = 0, 0
        for path in (self.records, self.path / SCORES) if self.is_folder else (self.path,):
            with suppress(OSError), open_file(path) as file:  # opened, because a network disk then asks its server
                status = os.fstat(file.fileno())
                size, changed = size + status.st_size, max(changed, status.st_mtime_ns)
        return size, changed

    def check(self) -> None:
        """ConfigError for a source with a link that leads out of what was named."""
        if not self.is_inside:
            raise self._leads_out()

    def check_with_checkpoints(self) -> None:
        """The same for a run folder whose model is read: its tokenizer, its checkpoints, and each of their files."""
        self.check()
        saved = self.path / CHECKPOINTS
        if not self._inside(*self.path.iterdir(), *saved.glob("*"), *saved.glob("*/*")):
            raise self._leads_out()

    def _leads_out(self) -> ConfigError:
        return ConfigError(
            f"{self.path.name} leads out of {self.root}",
            why="it is a link, or holds one, and only what was named is read",
            fix="name its own folder: onecard ui FOLDER",
            name="outside",
        )


def sources_in(named: Sequence[Path]) -> tuple[Source, ...]:
    """The run folders in the named folders and the named logs, each once. A folder may come later."""
    found = {source.id: source for path in named for source in _sources_at(path)}
    return tuple(found.values())


def _sources_at(path: Path) -> Iterator[Source]:
    try:
        if path.is_dir():
            folders = [Source(path=folder, root=path, is_folder=True) for folder in runs_in(path)]
            yield from (source for source in folders if source.is_inside)
        elif path.is_file():
            yield Source(path=path, root=path, is_folder=False)
    except (OSError, RuntimeError):  # it went away meanwhile, or is a circle of links
        return
