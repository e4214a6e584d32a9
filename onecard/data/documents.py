"""A file as a stream of documents, each with the place after it, so that reading can continue after any of them.

A place is a number within the file: bytes of unpacked text for JSON lines and text, rows for parquet. Only a buffer and
the current document are ever in memory. Where something cannot be a document, the reason comes instead (`Bad`).
"""

from __future__ import annotations

import gzip
import io
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator

from onecard.data.document import END, MAX_DOCUMENT_BYTES, Bad, Read, bounded
from onecard.data.parquet import parquet_documents
from onecard.data.sources import SourceFile, unreadable
from onecard.data.unpacking import BUFFER_BYTES, damage, opened, peeked, unpacked

CUT_BYTES = 2**14  # a text file named by itself is cut at the first empty line after this much
SEPARATOR = b"<|endoftext|>"
_HEAD_BYTES = 64  # enough to tell what a file is
_ARRAY = re.compile(rb"\s*\[\s*(\{|$)")  # but not a line such as ["a", "b"], which is one bad document
_MAX_LINE_BYTES = 2 * MAX_DOCUMENT_BYTES  # a line of JSON: its text, escapes and other columns
_PIECE_BYTES = 4 * CUT_BYTES  # or, if no line is empty, at the end of a line after this much


def read_documents(file: SourceFile, *, start: int = 0, column: str = "text") -> Iterator[Read]:
    """The documents of a file from the place `start` on. ConfigError if it cannot be opened at all."""
    if start >= END:
        return
    if file.kind == "parquet":
        yield from parquet_documents(file, start=start, column=column)
        return
    with opened(file) as raw:
        try:
            stream, told = unpacked(file, raw)
            kind = file.kind
            if start == 0 or file.path is None:
                head, stream = peeked(stream, _HEAD_BYTES)
                if file.path is None and head.removeprefix(BOM_UTF8).lstrip()[:1] == b"{":
                    kind = "jsonl"
                if why := _not_readable(head, kind, file):
                    yield Read(why, END, file.size_bytes or 0)
                    return
            reader = {"jsonl": _json_lines, "text": _texts, "document": _whole}[kind]
            is_first = start == 0
            for read in reader(stream, start):
                yield Read(_text(read.document, is_first=is_first), read.after, told(), kind == "jsonl")
                is_first = False
        except damage() as problem:
            if isinstance(problem, OSError) and problem.errno is not None and not isinstance(problem, gzip.BadGzipFile):
                raise unreadable(file.name, problem) from problem  # the disk failed, the data is fine
            yield Read(Bad.DAMAGED, END, file.size_bytes or 0)


def _not_readable(head: bytes, kind: str, file: SourceFile) -> Bad | None:
    """Why nothing in a file can be read, from its first bytes; None if they look fine."""
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in head[:4]:
        return Bad.UTF16
    is_json = kind == "jsonl" or file.path is None
    return Bad.ARRAY if is_json and _ARRAY.match(head.removeprefix(BOM_UTF8)) else None


def _text(document: bytes | Bad, *, is_first: bool) -> bytes | Bad:
    """The document; the first of a file without the byte order mark that some programs put before UTF-8."""
    return document.removeprefix(BOM_UTF8) if is_first and isinstance(document, bytes) else document


def place_words(file: SourceFile, after: int) -> str:
    """In words, the document of a file that ends at a place."""
    if after >= END or file.kind == "document":
        return file.name
    return f"{file.name}, row {after:,}" if file.kind == "parquet" else f"{file.name}, up to byte {after:,}"


def _skip(stream: io.BufferedReader, size: int) -> None:
    """Skip what was read before; in a plain file by seeking."""
    if stream.seekable():
        stream.seek(size)
        return
    while size and (part := stream.read(min(size, BUFFER_BYTES))):
        size -= len(part)


def _json_lines(stream: io.BufferedReader, start: int) -> Iterator[Read]:
    """Each line that is not empty; a line that is too long is not kept in memory."""
    _skip(stream, start)
    after = start
    while line := stream.readline(_MAX_LINE_BYTES):
        after += len(line)
        if len(line) < _MAX_LINE_BYTES or line.endswith(b"\n"):
            if not line.isspace():
                yield Read(line, after)
            continue
        while more := stream.readline(BUFFER_BYTES):
            after += len(more)
            if more.endswith(b"\n"):
                break
        yield Read(Bad.TOO_LONG, after)


def _texts(stream: io.BufferedReader, start: int) -> Iterator[Read]:
    """The documents of a text file: between separators if its beginning has one, else cut at empty lines."""
    head, stream = peeked(stream, BUFFER_BYTES)
    separated = SEPARATOR in head
    _skip(stream, start)
    parts: list[bytes] = []
    size = after = 0
    for piece, after in _pieces(stream):
        text = piece.removesuffix(SEPARATOR)
        size += len(text)
        if size <= MAX_DOCUMENT_BYTES + _PIECE_BYTES:  # it is too long already, so more is not kept
            parts.append(text)
        ended = text != piece
        cut = not separated and (size >= _PIECE_BYTES or (size >= CUT_BYTES and not text.strip()))
        if ended or cut:
            document = b"".join(parts)
            if cut or document.strip():  # two separators in a row have nothing between them
                yield Read(bounded(document if cut else document.strip()), start + after)
            parts, size = [], 0
    if rest := b"".join(parts):
        yield Read(bounded(rest.strip() if separated else rest), start + after)


def _pieces(stream: io.BufferedReader) -> Iterator[tuple[bytes, int]]:
    """Lines, and the place after each. A piece also ends at a separator, or between words if it is too long."""
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
    """Where to cut a long text: after its last space, or else not inside a character."""
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
