"""Which documents came before: 64-bit hashes on disk, a bounded part of them in memory.

The newest hashes are in a file, in order of arrival. When it has `run_length` of them, a sorted copy is made, which is
mapped and searched. Two different texts have the same hash with a chance of 2**-64: among a hundred million documents,
the chance that one is lost by mistake is 0.03 %.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onecard.errors import ConfigError
from onecard.files import free_name, write_durably

Hashes = npt.NDArray[np.uint64]
RUN_LENGTH = 2**23  # hashes in a sorted file: 64 MiB


class DocumentHashes:
    """The hashes of the first `count` different documents, from the files in `folder`; later ones are dropped."""

    def __init__(self, folder: Path, *, count: int, run_length: int = RUN_LENGTH) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.count = count
        self.run_length = run_length
        self._runs = [self._mapped(number) for number in range(count // run_length)]
        self._saved = count
        self._begin(count % run_length)

    def are_new(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which of these hashes are new: not known, nor repeated here. From now on they are known."""
        new = np.zeros(len(hashes), dtype=np.bool_)
        _, first = np.unique(hashes, return_index=True)
        new[first] = True
        for known in (*self._runs, *self._recent):
            places = np.minimum(np.searchsorted(known, hashes), max(0, len(known) - 1))
            new &= known[places] != hashes if len(known) else True
        self._add(hashes[new])
        return new

    def save(self, count: int) -> None:
        """Wait until the first `count` are on disk. Removes what only saves before the last one needed."""
        self._sync()
        for number in range(self._saved // self.run_length):
            self._arrived(number).unlink(missing_ok=True)
        self._saved = count

    def close(self) -> None:
        self._file.close()

    def _sync(self) -> None:
        if not self._file.closed:  # a closed one was synced when it was put away
            self._file.flush()
            os.fsync(self._file.fileno())

    def _add(self, hashes: Hashes) -> None:
        while len(hashes):
            part = hashes[: self.run_length - self.count % self.run_length]
            hashes = hashes[len(part) :]
            self._file.write(part.tobytes())
            self.count += len(part)
            self._recent.append(np.sort(part))
            while len(self._recent) > 1 and len(self._recent[-1]) * 2 > len(self._recent[-2]):  # few, ever larger runs
                last = self._recent.pop()
                self._recent[-1] = np.sort(np.concatenate((self._recent[-1], last)))
            if self.count % self.run_length == 0:
                self._put_away()

    def _put_away(self) -> None:
        """The newest hashes become a sorted file."""
        number = len(self._runs)
        write_durably(self._sorted(number), np.sort(np.concatenate(self._recent)).tobytes())
        self._sync()
        self._file.close()
        self._runs.append(self._mapped(number))
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Continue after the first `length` of the newest hashes."""
        path = self._arrived(len(self._runs))
        path.touch()
        stored = np.fromfile(path, dtype="<u8", count=length)
        if len(stored) < length:
            raise ConfigError(
                f"{path} has {len(stored):,} hashes, but {length:,} were written",
                why="the file was cut off or replaced since then",
                fix=f"put back a copy of it, or prepare into another folder: --out {free_name(self.folder.parent)}",
                name="preparation-damaged",
            )
        self._file = path.open("r+b")
        self._file.truncate(length * stored.itemsize)
        self._file.seek(0, os.SEEK_END)
        self._recent = [np.sort(stored)] if length else []

    def _arrived(self, number: int) -> Path:
        return self.folder / f"arrived-{number:04d}.u64"

    def _sorted(self, number: int) -> Path:
        return self.folder / f"sorted-{number:04d}.u64"

    def _mapped(self, number: int) -> Hashes:
        return np.memmap(self._sorted(number), dtype="<u8", mode="r", shape=(self.run_length,))
