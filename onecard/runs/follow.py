"""A run folder read again and again: only what was added is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from onecard.opening import open_file, pieces
from onecard.runs.folder import LONGEST_RECORD_BYTES, RECORDS, Run, checkpoints_in, config_in, load_run
from onecard.runs.history import History, read_lines
from onecard.runs.records import Record


@dataclass
class Followed:
    """The records of a run folder up to where they were read."""

    path: Path
    _records: list[Record] = field(default_factory=list)
    _damaged: int = 0
    _place: int = 0  # bytes read: whole lines
    _file: tuple[int, int] | None = None  # device and number of the file that was read

    def run(self) -> Run:
        """The run as it is now: what `load_run` gives. A file that was replaced or cut is read from its beginning."""
        try:
            with open_file(self.path / RECORDS) as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._place:
                    self._records, self._damaged, self._place = [], 0, 0
                    self._file = status.st_dev, status.st_ino
                file.seek(self._place)
                found = read_lines(self._added(file))
        except OSError:
            self._file = None  # from the beginning next time
            return load_run(self.path)  # which says what is wrong
        self._records += found.records
        self._damaged += found.damaged_lines
        config = config_in(self.path)
        if config is None:
            return load_run(self.path)
        history = History(tuple(self._records), self._damaged)
        return Run(self.path, config, history, checkpoints_in(self.path))

    def _added(self, file: BinaryIO) -> Iterator[bytes]:
        """The lines from here on; the last waits for its end."""
        held = b""
        for piece in pieces(file, longest_bytes=LONGEST_RECORD_BYTES):
            if held:
                self._place += len(held)
                yield held
            held = piece
        if held.endswith(b"\n"):
            self._place += len(held)
            yield held
