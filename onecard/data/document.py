"""A document as read from a file, or why it cannot be used."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

MAX_DOCUMENT_BYTES = 2**24
END = 2**62  # a place after everything, for files that cannot be read further


class Bad(StrEnum):
    """Why something cannot be used as a document."""

    EMPTY = "empty"
    NOT_UTF8 = "not UTF-8"
    TOO_LONG = "longer than 16 MiB"
    NOT_JSON = "no JSON object"
    NO_TEXT = "no text in the column"
    NOT_ENCODED = "refused by the tokenizer"
    DAMAGED = "the rest of a damaged file"
    UTF16 = "UTF-16 or no text, where UTF-8 is read"
    ARRAY = "one JSON array, where a line is a document"


class Read(NamedTuple):
    """A document (a text, or a line of JSON) or why it cannot be used; its end; bytes read of the file on disk."""

    document: bytes | Bad
    after: int
    disk_bytes: int = 0
    is_json: bool = False


def bounded(text: bytes) -> bytes | Bad:
    """The document, unless it is too long."""
    return text if len(text) <= MAX_DOCUMENT_BYTES else Bad.TOO_LONG
