"""Writing the tokens of a split to files that other programs also read; a kill at any moment loses nothing saved.

A file is called NAME.part until it is complete. `state` describes bytes that are on disk; continuing from it cuts off
whatever came after.

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
from typing import TYPE_CHECKING, Any, Literal, get_args

from onecard.data.tokens import HEADER_BYTES, STORED, TOKEN_BYTES, TokenType, header
from onecard.errors import ConfigError
from onecard.files import free_name, sync_folder

if TYPE_CHECKING:
    import numpy.typing as npt
else:
    pass

Format = Literal["onecard", "nanogpt", "llmc"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHARD_TOKENS = 100_000_000  # as llm.c's FineWeb shards have


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the tokens of a split are stored."""

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
            case "llmc":  # llm.c's shard 0 is for validation
                return f"{self.folder.resolve().name}_{self.split}_{number + (self.split == 'train'):06d}.bin"

    @property
    def capacity(self) -> int | None:
        """Tokens in a file; None if a file holds all of them."""
        return None if self.format == "nanogpt" else self.shard_tokens

    @property
    def first_byte(self) -> int:
        return HEADER_BYTES if self.format == "llmc" else 0

    def size(self, tokens: int) -> int:
        """Bytes of a file with this many tokens."""
        return self.first_byte + tokens * TOKEN_BYTES[self.dtype]


class ShardWriter:
    """Appends tokens to the files of a split, from the state that `whole` and `begun` describe.

    `whole` are the entries of finished files, as in meta.json; `begun` is the number of tokens in the next file.
    """

    def __init__(self, layout: Layout, *, whole: Sequence[Mapping[str, Any]] = (), begun: int = 0) -> None:
        self.layout = layout
        self.whole = [dict(entry) for entry in whole]
        self.begun = begun
        if self.whole and self.whole[-1]["tokens"] != layout.capacity:  # finished data that now grows
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
        """Wait until everything written is on disk. Ended files are there already."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())

    def state(self) -> dict[str, Any]:
        """The state to continue from."""
        return {"whole": list(self.whole), "begun": self.begun}

    def finish(self) -> list[dict[str, Any]]:
        """End the last file; returns the entries of all files. A split without tokens has one empty file."""
        if self.begun or not self.whole:
            self._end_file()
        self.close()
        number = len(self.whole)
        while self.layout.capacity and self._remove(number):  # left by a killed process, or begun just now
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
        """Remove the file with this number, complete or not; returns whether there was one."""
        path = self.layout.folder / self.layout.name(number)
        found = [each for each in (path, path.with_name(path.name + ".part")) if each.exists()]
        for each in found:
            each.unlink()
        return bool(found)

    def _open(self) -> None:
        """Open the file to continue, and cut off what was written after the state."""
        if self._path.exists():  # it was ended since, or is the last file of data that now grows
            self._path.replace(self._part)
        self._part.touch()
        size = self.layout.size(self.begun) if self.begun else 0
        if self._part.stat().st_size < size:
            raise ConfigError(
                f"{self._part} is shorter than what was written to it",
                why=f"it should have {size:,} bytes, but has {self._part.stat().st_size:,}",
                fix=f"put back a copy of it, or prepare into another folder: --out {free_name(self.layout.folder)}",
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
