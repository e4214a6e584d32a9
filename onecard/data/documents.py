"""A file as a stream of documents, each with the place after it, so that reading can go on from any of them.

A place is a number of the file's own: bytes of text (unpacked) for JSON lines and text, rows for parquet. Nothing is
ever held but a buffer and the document at hand. What cannot be a document comes as the reason why (`Bad`).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from onecard.data.extras import extra
from onecard.data.sources import SourceFile, unreadable

MAX_DOCUMENT_BYTES = 2**24
CUT_BYTES = 2**14  # a text file by itself is cut at the first empty line after so much
SEPARATOR = b"<|endoftext|>"
_MAX_LINE_BYTES = 2 * MAX_DOCUMENT_BYTES  # a line of JSON: its text, escapes and other columns
_PIECE_BYTES = 4 * CUT_BYTES  # or, where no line is empty, at a line's end after so much
_BUFFER_BYTES = 2**20
_PACKED_BYTES = 2**16  # read of a packed file at a time: what damage may take with it
_ROWS = 256  # of parquet, read at a time
_END = 2**62  # a place after everything, for files that cannot be read on
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ": ".xz"}


class Bad(StrEnum):
    """Why something is no document."""

    EMPTY = "empty"
    NOT_UTF8 = "not UTF-8"
    TOO_LONG = "longer than 16 MiB"
    NOT_JSON = "no JSON object"
    NO_TEXT = "no text in the column"
    NOT_ENCODED = "refused by the tokenizer"
    DAMAGED = "the rest of a damaged file"


class Read(NamedTuple):
    """A document (a text, or a line of JSON) or why there is none; where it ends; how far into the file on disk."""

    document: bytes | Bad
    after: int
    disk_bytes: int = 0
    is_json: bool = False


def read_documents(file: SourceFile, *, start: int = 0, column: str = "text") -> Iterator[Read]:
    """The documents of a file from the place `start` on. ConfigError if it cannot be opened at all."""
    if start >= _END:
        return
    if file.kind == "parquet":
        yield from _parquet(file, start=start, column=column)
        return
    with _opened(file) as raw:
        stream, kind, told = _unpacked(file, raw)
        reader = {"jsonl": _json_lines, "text": _texts, "document": _whole}[kind]
        try:
            for read in reader(stream, start):
                yield Read(read.document, read.after, told(), kind == "jsonl")
        except _damage() as problem:
            if isinstance(problem, OSError) and problem.errno is not None and not isinstance(problem, gzip.BadGzipFile):
                raise unreadable(file.name, problem) from problem  # the disk, not the data
            yield Read(Bad.DAMAGED, _END, file.size_bytes or 0)


def place_words(file: SourceFile, after: int) -> str:
    """A document of a file, by the place after it, in words."""
    if after >= _END or file.kind == "document":
        return file.name
    return f"{file.name}, row {after:,}" if file.kind == "parquet" else f"{file.name}, up to byte {after:,}"


def _opened(file: SourceFile) -> BinaryIO:
    if file.path is None:
        return sys.stdin.buffer
    try:
        return file.path.open("rb")
    except OSError as problem:
        raise unreadable(str(file.path), problem) from problem


def _unpacked(file: SourceFile, raw: BinaryIO) -> tuple[io.BufferedReader, str, Callable[[], int]]:
    """The text of a file, what it is, and a function that says how far it was read on disk."""
    kind: str = file.kind
    packing = file.packing
    told: Callable[[], int] = raw.tell if file.size_bytes is not None else lambda: 0
    if file.path is None:  # standard input has no name to go by
        head, raw = _peeked(raw, 8)
        packing = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    stream = io.BufferedReader(_unpacker(packing, raw), _PACKED_BYTES if packing else _BUFFER_BYTES)
    if file.path is None:
        head, again = _peeked(stream, 64)
        stream = io.BufferedReader(again, _BUFFER_BYTES)
        kind = "jsonl" if head.lstrip().startswith(b"{") else kind
    return stream, kind, told


def _unpacker(packing: str | None, raw: BinaryIO) -> Any:
    match packing:
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".bz2":
            return bz2.BZ2File(raw)
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            return _Zstandard(raw)
    return raw


class _Zstandard(io.RawIOBase):
    """The content of a .zst file; EOFError where it is cut off, which the library's own reader takes for the end."""

    def __init__(self, packed: BinaryIO) -> None:
        library = extra("zstandard", purpose="reading a .zst file")
        self._unpacker = library.ZstdDecompressor(max_window_size=2**31)
        self._frame: Any = None
        self._packed, self._left, self._ready = packed, b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._left or self._packed.read(2**14)  # little: a bomb unpacks to 30,000 times as much
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


def _damage() -> tuple[type[Exception], ...]:
    """What the unpackers raise for a file that is cut off or broken."""
    known: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    module = sys.modules.get("zstandard")
    return (*known, module.ZstdError) if module else known


class _Rejoined(io.RawIOBase):
    """A stream whose first bytes were looked at, from its beginning."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._head[: len(buffer)] if self._head else self._rest.read1(len(buffer))
        self._head = self._head[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def _peeked(stream: Any, size: int) -> tuple[bytes, Any]:
    """The first bytes of a stream, and the stream with them."""
    head = stream.read(size)
    return head, io.BufferedReader(_Rejoined(head, stream), _BUFFER_BYTES)


def _skip(stream: io.BufferedReader, size: int) -> None:
    """Read past what was read before; a plain file jumps there."""
    if stream.seekable():
        stream.seek(size)
        return
    while size and (part := stream.read(min(size, _BUFFER_BYTES))):
        size -= len(part)


def _json_lines(stream: io.BufferedReader, start: int) -> Iterator[Read]:
    """Each line that is not empty; one that is too long is not kept."""
    _skip(stream, start)
    after = start
    while line := stream.readline(_MAX_LINE_BYTES):
        after += len(line)
        if len(line) < _MAX_LINE_BYTES or line.endswith(b"\n"):
            if not line.isspace():
                yield Read(line, after)
            continue
        while more := stream.readline(_BUFFER_BYTES):
            after += len(more)
            if more.endswith(b"\n"):
                break
        yield Read(Bad.TOO_LONG, after)


def _texts(stream: io.BufferedReader, start: int) -> Iterator[Read]:
    """The documents of a text file: between separators if its beginning has one, else cut at empty lines."""
    head, stream = _peeked(stream, _BUFFER_BYTES)
    separated = SEPARATOR in head
    _skip(stream, start)
    parts: list[bytes] = []
    size = after = 0
    for piece, after in _pieces(stream):
        text = piece.removesuffix(SEPARATOR)
        size += len(text)
        if size <= MAX_DOCUMENT_BYTES + _PIECE_BYTES:  # more is not kept: it is too long already
            parts.append(text)
        ended = text != piece
        cut = not separated and (size >= _PIECE_BYTES or (size >= CUT_BYTES and not text.strip()))
        if ended or cut:
            document = b"".join(parts)
            if cut or document.strip():  # two separators in a row have nothing between them
                yield Read(_bounded(document if cut else document.strip()), start + after)
            parts, size = [], 0
    if rest := b"".join(parts):
        yield Read(_bounded(rest.strip() if separated else rest), start + after)


def _pieces(stream: io.BufferedReader) -> Iterator[tuple[bytes, int]]:
    """Lines, and the place after each. A piece also ends with a separator, or when it is too long, between words."""
    after, held = 0, b""
    while True:
        if not held.endswith(b"\n"):
            held += stream.readline(_PIECE_BYTES - len(held))
        if not held:
            return
        mark = held.find(SEPARATOR)
        if mark >= 0:
            cut = mark + len(SEPARATOR)
        else:
            is_line = held.endswith(b"\n") or len(held) < _PIECE_BYTES  # or the end of the file
            cut = len(held) if is_line else _between_words(held)
        after += cut
        yield held[:cut], after
        held = held[cut:]


def _between_words(text: bytes) -> int:
    """Where to cut a long text: after its last space, or at least not within a character."""
    if space := text.rfind(b" ") + 1:
        return space
    first = next((back for back in range(1, 5) if text[-back] & 0xC0 != 0x80), 1)  # of the last character
    return len(text) - first


def _whole(stream: io.BufferedReader, start: int) -> Iterator[Read]:
    """A file that is one document."""
    if start:
        return
    text = stream.read(MAX_DOCUMENT_BYTES + 1)
    yield Read(Bad.TOO_LONG if len(text) > MAX_DOCUMENT_BYTES else text, max(1, len(text)))


def _parquet(file: SourceFile, *, start: int, column: str) -> Iterator[Read]:
    """The texts of one column, row by row; a row group is never held whole."""
    assert file.path is not None, "fetched before it is read"
    parquet = extra("pyarrow.parquet", purpose="reading parquet")
    arrow = extra("pyarrow", purpose="reading parquet")
    size_bytes = file.size_bytes or 0
    try:
        table = parquet.ParquetFile(file.path, memory_map=False, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (arrow.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None and not Path(file.path).is_file():
            raise unreadable(str(file.path), problem) from problem
        yield Read(Bad.DAMAGED, _END, size_bytes)
        return
    with table:
        rows = table.metadata.num_rows
        place = 0
        if column not in table.schema_arrow.names:
            for place in range(start, rows):
                yield Read(Bad.NO_TEXT, place + 1, size_bytes)
            return
        for group in range(table.num_row_groups):
            length = table.metadata.row_group(group).num_rows
            if place + length <= start:
                place += length
                continue
            try:
                for batch in table.iter_batches(_ROWS, row_groups=[group], columns=[column], use_threads=False):
                    values = batch.column(0)
                    skipped = min(len(values), max(0, start - place))
                    place += skipped
                    for text in _utf8(values.slice(skipped), arrow):
                        place += 1
                        yield Read(text, place, size_bytes * place // rows)
            except (arrow.ArrowException, OSError):
                yield Read(Bad.DAMAGED, _END, size_bytes)
                return


def parquet_columns(file: SourceFile) -> tuple[str, ...]:
    """The columns of a parquet file; none if it cannot be read, or is not here."""
    try:
        return tuple(extra("pyarrow.parquet", purpose="reading parquet").read_schema(file.path).names)
    except (OSError, TypeError, ValueError):  # ArrowInvalid is a ValueError
        return ()


def _utf8(values: Any, arrow: Any) -> list[bytes | Bad]:
    """The texts of a column as bytes, whatever kind of text it has."""
    if arrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if arrow.types.is_string(values.type) or arrow.types.is_large_string(values.type):
        values = values.cast(arrow.large_binary())  # no decoding here: a bad one must not stop the others
    if not (arrow.types.is_binary(values.type) or arrow.types.is_large_binary(values.type)):
        return [Bad.NO_TEXT] * len(values)
    return [Bad.NO_TEXT if value is None else _bounded(value) for value in values.to_pylist()]


def _bounded(text: bytes) -> bytes | Bad:
    return text if len(text) <= MAX_DOCUMENT_BYTES else Bad.TOO_LONG
