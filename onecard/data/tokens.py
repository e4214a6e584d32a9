"""Token files, memory-mapped: nanoGPT's raw .bin, or llm.c's shards with a header; several are read as one.

Raw files are little-endian uint16 (or uint32) and nothing else. llm.c, modded-nanogpt and others put 256 int32 before
the tokens: a magic number that also names the type, a version, the number of tokens, and zeros
(karpathy/llm.c, dev/data/data_common.py).
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onecard.errors import ConfigError, MachineError, OnecardError
from onecard.opening import cannot_read, open_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]
else:
    from onecard.data.extras import numpy as np

    Array = Any

TokenType = Literal["uint16", "uint32"]

STORED: dict[TokenType, str] = {"uint16": "<u2", "uint32": "<u4"}
TOKEN_BYTES: dict[TokenType, int] = {"uint16": 2, "uint32": 4}
HEADER_BYTES = 256 * 4
_HEADERS: dict[tuple[int, int], TokenType] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # magic, version
FEWEST_TO_COMPARE = 256  # tokens: shorter splits may be the same by chance
_COMPARED = 2**20  # tokens at a time
_CHUNK = 2**22  # tokens scanned at a time: a few MiB, for any file


def token_type(vocab_size: int) -> TokenType:
    """The smallest type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True)
class TokenFile:
    """One file: where its tokens begin, how many there are, and their type."""

    path: Path
    dtype: TokenType
    first_byte: int
    count: int

    @property
    def token_bytes(self) -> int:
        return TOKEN_BYTES[self.dtype]

    @property
    def end_byte(self) -> int:
        return self.first_byte + self.count * self.token_bytes

    def mapped(self) -> npt.NDArray[Any]:
        """The tokens, read from disk when they are used."""
        if self.count == 0:
            return np.zeros(0, dtype=STORED[self.dtype])  # an empty file cannot be mapped
        return np.memmap(self.path, dtype=STORED[self.dtype], mode="r", offset=self.first_byte, shape=(self.count,))


def token_file(path: Path, *, dtype: TokenType = "uint16", raw: bool = False) -> TokenFile:
    """What `path` holds: as its header says, if it has one and is not known to be `raw`, else tokens of `dtype`."""
    try:
        with open_file(path) as file:
            size, header = os.fstat(file.fileno()).st_size, b"" if raw else file.read(HEADER_BYTES)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"there is no token file {path}",
            why="training reads train.bin, and evaluation reads val.bin",
            fix="prepare the data first (nanoGPT: python data/NAME/prepare.py), or choose another --dataset=NAME",
            name="token-file-missing",
        ) from problem
    except OSError as problem:
        raise unreadable(path, problem) from problem
    if len(header) == HEADER_BYTES:
        magic, version, count = struct.unpack_from("<3i", header)
        if stored := _HEADERS.get((magic, version)):
            expected = HEADER_BYTES + count * TOKEN_BYTES[stored]
            if size != expected:
                raise damaged(path, f"its header says {count:,} tokens, {expected:,} bytes, but it has {size:,}")
            return TokenFile(path, stored, HEADER_BYTES, count)
    each = TOKEN_BYTES[dtype]
    if size % each:
        raise damaged(path, f"a token takes {each} bytes, so {size:,} bytes are not a whole number of tokens")
    return TokenFile(path, dtype, 0, size // each)


class Tokens:
    """Files in order as one long sequence of token ids."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = tuple(files)
        try:
            self._mapped = [file.mapped() for file in self.files]
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) or len(files) == 1:
                raise
            raise _too_many(self.files, problem) from problem
        self._begins = [0, *accumulate(file.count for file in self.files)]

    def __len__(self) -> int:
        return self._begins[-1]

    def read(self, start: int, length: int) -> Array:
        """Token ids [length] from position `start`; shorter at the end."""
        return self.rows(np.array([start]), min(length, len(self) - start)).reshape(-1)

    def rows(self, starts: Array, length: int) -> Array:
        """Token ids [len(starts), length]: one row from each start. All rows must lie within the sequence."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in zip(rows, starts.tolist(), strict=True):
            assert 0 <= start <= len(self) - length, "a window outside the data"
            filled = 0
            index = bisect.bisect_right(self._begins, start) - 1
            while filled < length:  # a window may continue in the next file
                self._check_whole(index)
                begin = start + filled - self._begins[index]
                part = self._mapped[index][begin : begin + length - filled]
                row[filled : filled + len(part)] = part
                filled += len(part)
                index += 1
        return rows

    def _check_whole(self, index: int) -> None:
        """ConfigError if a file was cut short since it was opened: reading past its end would kill this process."""
        file, opened = self.files[index], self._mapped[index].base
        if isinstance(opened, mmap.mmap) and opened.size() < file.end_byte:
            raise ConfigError(
                f"{file.path} was cut short while it was in use",
                why=f"it had {file.end_byte:,} bytes and now has {opened.size():,}: something has overwritten it",
                fix="restore the file, then continue the run from its last checkpoint with --resume",
                name="token-file-cut",
            )

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The whole sequence in pieces of its stored type, each with the position of its first token."""
        for begin, mapped in zip(self._begins, self._mapped, strict=False):
            for first in range(0, len(mapped), _CHUNK):
                yield begin + first, mapped[first : first + _CHUNK]

    @property
    def largest_possible(self) -> int:
        """The largest id the stored type can hold."""
        return max((int(np.iinfo(mapped.dtype).max) for mapped in self._mapped), default=0)

    def file_at(self, position: int) -> tuple[Path, int]:
        """The file that holds a position, and the position within it."""
        index = bisect.bisect_right(self._begins, position) - 1
        return self.files[index].path, position - self._begins[index]

    def sample(self, *, pieces: int, length: int) -> Iterator[npt.NDArray[Any]]:
        """Evenly spread pieces of every file, of its stored type, starting at even positions, including the end."""
        for mapped in self._mapped:
            last = max(0, len(mapped) - length)
            for piece in range(pieces):
                start = last * piece // max(1, pieces - 1) & ~1
                yield mapped[start : start + length + 1] if piece == pieces - 1 else mapped[start : start + length]


def fingerprint(*splits: Tokens, whole: bool) -> str:
    """16 hex digits that identify the data by its content, wherever it is stored.

    They hash sizes, types and a spread sample, since all tokens of a large corpus would take minutes; with `whole`,
    every token.
    """
    digest = hashlib.sha256()
    for tokens in splits:
        digest.update(repr([(file.dtype, file.count) for file in tokens.files]).encode())
        pieces = (chunk for _, chunk in tokens.chunks()) if whole else tokens.sample(pieces=64, length=2048)
        for piece in pieces:
            digest.update(piece.tobytes())
    return digest.hexdigest()[:16]


def first_outside(tokens: Tokens, *, vocab_size: int) -> tuple[int, int] | None:
    """Position and id of the first token outside a vocabulary; None if there is none."""
    if tokens.largest_possible < vocab_size:
        return None
    for position, chunk in tokens.chunks():
        if int(chunk.max()) >= vocab_size:
            index = int(np.argmax(chunk >= vocab_size))
            return position + index, int(chunk[index])
    return None


def val_in_train(train: Tokens, val: Tokens) -> str:
    """How the validation split is part of the training split, in words; empty where it is neither the same nor the
    beginning or the end of it. Stops at the first difference, so data that is split well costs nothing."""
    size = len(val)
    if not FEWEST_TO_COMPARE <= size <= len(train):
        return ""
    if _same_from(train, 0, val):
        return "is the same as the training data" if size == len(train) else "is the beginning of the training data"
    return "is the end of the training data" if _same_from(train, len(train) - size, val) else ""


def _same_from(train: Tokens, start: int, val: Tokens) -> bool:
    """Whether `train` has all tokens of `val` from `start` on; looks at a few first."""
    if not np.array_equal(train.read(start, FEWEST_TO_COMPARE), val.read(0, FEWEST_TO_COMPARE)):
        return False
    return all(
        np.array_equal(train.read(start + first, length), val.read(first, length))
        for first in range(0, len(val), _COMPARED)
        for length in (min(_COMPARED, len(val) - first),)
    )


def largest_id(tokens: Tokens) -> int:
    """The largest id in the data; -1 without tokens."""
    return max((int(chunk.max()) for _, chunk in tokens.chunks()), default=-1)


def looks_like_uint32(tokens: Tokens) -> bool:
    """Whether uint16 tokens are really halves of uint32 tokens: every second value is tiny, the others are not.

    The upper half of an id below 2**18, more than any vocabulary in use, is at most 3.
    """
    if not tokens.files or tokens.files[0].dtype != "uint16" or len(tokens) % 2 or len(tokens) < 512:
        return False
    pieces = [piece[: len(piece) // 2 * 2] for piece in tokens.sample(pieces=64, length=2048)]
    upper = max(int(piece[1::2].max(initial=0)) for piece in pieces)
    lower = np.concatenate([piece[0::2] for piece in pieces])
    return upper <= 3 and float(np.mean(lower > 3)) > 0.5


def write_tokens(path: Path, parts: Iterator[npt.NDArray[Any]], *, dtype: TokenType) -> dict[str, object]:
    """Write parts one after another to a raw file; returns its entry for meta.json. The caller handles OSErrors."""
    digest = hashlib.sha256()
    count = 0
    with path.open("wb") as file:
        for part in parts:
            stored = part.astype(STORED[dtype]).tobytes()
            digest.update(stored)
            file.write(stored)
            count += len(part)
    return {"file": path.name, "tokens": count, "sha256": digest.hexdigest()}


def header(count: int, *, dtype: TokenType) -> bytes:
    """The header that llm.c puts before this many tokens."""
    numbers = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    (magic, version), _ = next(known for known in _HEADERS.items() if known[1] == dtype)
    numbers[:3] = magic, version, count
    return numbers.tobytes()


def _too_many(files: Sequence[TokenFile], problem: OSError) -> MachineError:
    return MachineError(
        f"the {len(files):,} token files of {files[0].path.parent} cannot all be open at once",
        why=f"the system says: {problem.strerror or problem}",
        fix=f"ulimit -n {2 * len(files) + 1024}, or prepare the data in fewer files: --shard-tokens 100M",
        name="too-many-files",
    )


def unreadable(path: Path, problem: OSError) -> OnecardError:
    """The error for a token file, or one beside it, that the system does not let anybody read."""
    return cannot_read(path, problem) or ConfigError(
        f"{path} cannot be read",
        why=f"the system says: {problem.strerror or problem}",
        fix=f"look at `ls -l {path}`",
        name="token-file-unreadable",
    )


def damaged(path: Path, why: str) -> ConfigError:
    """The error for a token file, or one beside it, that is not what it says."""
    return ConfigError(
        f"{path} is damaged",
        why=why,
        fix="prepare the data again; an interrupted copy or download looks like this",
        name="token-file-damaged",
    )
