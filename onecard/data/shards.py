"""Writing the tokens of a split, in files that others read too, so that a kill at any moment costs nothing written.

A file is called NAME.part until it is whole. What `state` says is a promise about the bytes on disk; going on from it
cuts off whatever came after.

| format | files | before the tokens |
|---|---|---|
| onecard | train-00000.bin, train-00001.bin, …, of 100M tokens | nothing |
| nanogpt | train.bin | nothing |
| llmc | NAME_train_000001.bin, …, NAME_val_000000.bin, of 100M tokens | llm.c's header |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from onecard.data.tokens import HEADER_BYTES, STORED, TokenType, header
from onecard.errors import ConfigError
from onecard.runs.files import sync_folder

Format = Literal["onecard", "nanogpt", "llmc"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHARD_TOKENS = 100_000_000  # as llm.c's FineWeb shards have


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the tokens of a split lie."""

    folder: Path
    split: str
    format: Format
    dtype: TokenType
    shard_tokens: int = SHARD_TOKENS

    def name(self, number: int) -> str:
        """The name of the file with this number, from 0."""
        match self.format:
            case "onecard":
                return f"{self.split}-{number:05d}.bin"
            case "nanogpt":
                return f"{self.split}.bin"
            case "llmc":  # there, shard 0 is the one for validation
                return f"{self.folder.resolve().name}_{self.split}_{number + (self.split == 'train'):06d}.bin"

    @property
    def capacity(self) -> int | None:
        """Tokens in a file; None for as many as there are."""
        return None if self.format == "nanogpt" else self.shard_tokens

    @property
    def first_byte(self) -> int:
        return HEADER_BYTES if self.format == "llmc" else 0

    def size(self, tokens: int) -> int:
        """Bytes of a file with so many tokens."""
        return self.first_byte + tokens * np.dtype(STORED[self.dtype]).itemsize


class ShardWriter:
    """Appends tokens to the files of a split, from where `whole` and `begun` say that it stood.

    `whole` are the entries of finished files as meta.json has them, `begun` the tokens of the file after them.
    """

    def __init__(self, layout: Layout, *, whole: Sequence[Mapping[str, Any]] = (), begun: int = 0) -> None:
        self.layout = layout
        self.whole = [dict(entry) for entry in whole]
        self.begun = begun
        if self.whole and self.whole[-1]["tokens"] != layout.capacity:  # finished data that is now to grow
            self.begun = self.whole.pop()["tokens"]
        self._open()

    @property
    def tokens(self) -> int:
        return self.begun + sum(int(entry["tokens"]) for entry in self.whole)

    def write(self, ids: npt.NDArray[Any]) -> None:
        """Append tokens, beginning a new file whenever one is full."""
        while len(ids):
            room = len(ids) if self.layout.capacity is None else self.layout.capacity - self.begun
            part = ids[:room]
            ids = ids[len(part) :]
            self._file.write(part.astype(STORED[self.layout.dtype]).tobytes())
            self.begun += len(part)
            if self.begun == self.layout.capacity:
                self._end_file()
                self._open()

    def save(self) -> None:
        """Wait until all that was written is on the disk. A file that was ended is there already."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())

    def state(self) -> dict[str, Any]:
        """What to go on from."""
        return {"whole": list(self.whole), "begun": self.begun}

    def finish(self) -> list[dict[str, Any]]:
        """End the last file; the entries of all of them. A split without tokens has one empty file."""
        if self.begun or not self.whole:
            self._end_file()
        self.close()
        number = len(self.whole)
        while self.layout.capacity and self._remove(number):  # begun by a process that was killed, or just now
            number += 1
        return self.whole

    def close(self) -> None:
        self._file.close()

    @property
    def _path(self) -> Path:
        return self.layout.folder / self.layout.name(len(self.whole))

    @property
    def _part(self) -> Path:
        return self._path.with_name(self._path.name + ".part")

    def _remove(self, number: int) -> bool:
        """Remove the file with this number, whole or not; whether there was one."""
        path = self.layout.folder / self.layout.name(number)
        found = [each for each in (path, path.with_name(path.name + ".part")) if each.exists()]
        for each in found:
            each.unlink()
        return bool(found)

    def _open(self) -> None:
        """Open the file to go on with, and cut off what was written after the state."""
        if self._path.exists():  # ended since, or the last one of data that is now to grow
            self._path.replace(self._part)
        self._part.touch()
        size = self.layout.size(self.begun) if self.begun else 0
        if self._part.stat().st_size < size:
            raise ConfigError(
                f"{self._part} is shorter than what was written to it",
                why=f"it should have {size:,} bytes and has {self._part.stat().st_size:,}",
                fix=f"remove {self.layout.folder} and prepare the data again",
                name="preparation-damaged",
            )
        self._file = self._part.open("r+b")
        self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)
        if not size:
            self._file.write(bytes(self.layout.first_byte))

    def _end_file(self) -> None:
        if self.layout.format == "llmc":
            self._file.seek(0)
            self._file.write(header(self.begun, dtype=self.layout.dtype))
        self.save()
        self.close()
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._part.replace(self._path)
        sync_folder(self.layout.folder)
        self.whole.append({"file": self._path.name, "tokens": self.begun, "sha256": digest})
        self.begun = 0
