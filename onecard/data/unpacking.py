"""The bytes of a file, whatever its compression."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from onecard.data.extras import extra
from onecard.data.sources import SourceFile, unreadable
from onecard.opening import open_file

BUFFER_BYTES = 2**20
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ": ".xz"}


def opened(file: SourceFile) -> BinaryIO:
    """The file as stored, or standard input. ConfigError if it cannot be opened."""
    if file.path is None:
        return sys.stdin.buffer
    try:
        return open_file(file.path)
    except OSError as problem:
        raise unreadable(str(file.path), problem) from problem


def unpacked(file: SourceFile, raw: BinaryIO) -> tuple[io.BufferedReader, Callable[[], int]]:
    """The text of a file, and a function that returns how far it was read on disk."""
    packing = file.packing
    told: Callable[[], int] = raw.tell if file.size_bytes is not None else lambda: 0
    if file.path is None:  # standard input has no name to go by
        head, raw = peeked(raw, 8)
        packing = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    return io.BufferedReader(_unpacker(packing, raw), BUFFER_BYTES), told


def _unpacker(packing: str | None, raw: BinaryIO) -> Any:
    match packing:
        case ".gz":
            return _Eager(gzip.GzipFile(fileobj=raw))
        case ".bz2":
            return _Eager(bz2.BZ2File(raw))
        case ".xz":
            return _Eager(lzma.LZMAFile(raw))
        case ".zst":
            return _Zstandard(raw)
    return raw


class _Eager(io.RawIOBase):
    """A packed file that returns what it has unpacked before it reads more: damage then costs nothing before it."""

    def __init__(self, packed: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile) -> None:
        self._packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._packed.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)


class _Zstandard(io.RawIOBase):
    """The content of a .zst file; EOFError if it is cut off, which the library's own reader takes for the end."""

    def __init__(self, packed: BinaryIO) -> None:
        library = extra("zstandard", purpose="reading a .zst file")
        self._unpacker = library.ZstdDecompressor(max_window_size=2**31)
        self._frame: Any = None
        self._packed, self._left, self._ready = packed, b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._left or self._packed.read(2**14)  # little: a zip bomb unpacks to 30,000 times as much
            if not packed:
                if self._frame is not None:
                    raise EOFError("the last frame is not whole")
                return 0
            self._frame = self._frame or self._unpacker.decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
            self._left = self._frame.unused_data  # the next frame has begun
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def damage() -> tuple[type[Exception], ...]:
    """What the unpackers raise for a file that is cut off or broken."""
    known: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    module = sys.modules.get("zstandard")
    return (*known, module.ZstdError) if module else known


class _Rejoined(io.RawIOBase):
    """A stream with its first bytes put back after a look at them; damage found in that look is raised after them."""

    def __init__(self, head: bytes, rest: Any, problem: Exception | None) -> None:
        self._head, self._rest, self._problem = head, rest, problem

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head and self._problem:
            raise self._problem
        part = self._head[: len(buffer)] if self._head else self._rest.read1(len(buffer))
        self._head = self._head[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def peeked(stream: Any, size: int) -> tuple[bytes, Any]:
    """The first bytes of a stream, and the stream still with them."""
    head, problem = b"", None
    try:
        while len(head) < size and (part := stream.read1(size - len(head))):
            head += part
    except damage() as met:
        problem = met
    return head, io.BufferedReader(_Rejoined(head, stream, problem), BUFFER_BYTES)
