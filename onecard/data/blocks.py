"""Documents in blocks: large enough to be worth sending to a worker, small enough to hold many of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onecard.data.document import Bad
from onecard.data.documents import read_documents
from onecard.data.downloads import Fetcher, OnWait
from onecard.data.sources import Source

Place = tuple[int, int]  # the number of a file, and a place in it
_BLOCK_BYTES = 2**20
_BLOCK_DOCUMENTS = 4096


@dataclass(frozen=True)
class DocumentBlock:
    """Documents that travel together, and the place after each."""

    documents: list[bytes | Bad]
    afters: list[Place]
    is_json: bool
    disk_bytes: int  # of the source, read up to this block


def read_blocks(
    source: Source,
    place: Place,
    *,
    column: str,
    fetcher: Fetcher,
    on_wait: OnWait = lambda file, received_bytes, holder: None,
) -> Iterator[DocumentBlock | None]:
    """The documents after a place, in blocks of about a mebibyte; None before a file that must still be fetched."""
    documents: list[bytes | Bad] = []
    afters: list[Place] = []
    size = 0
    is_json = False
    disk_bytes = before_bytes = sum(file.size_bytes or 0 for file in source.files[: place[0]])
    for number in range(place[0], len(source.files)):
        if not fetcher.is_here(source.files[number]):
            if documents:
                yield DocumentBlock(documents, afters, is_json, disk_bytes)
                documents, afters, size = [], [], 0
            yield None  # what was read so far may be enough
        file = fetcher.get(source.files[number], on_wait=on_wait)
        start = place[1] if number == place[0] else 0
        for read in read_documents(file, start=start, column=column):
            full = size >= _BLOCK_BYTES or len(documents) >= _BLOCK_DOCUMENTS or read.is_json != is_json
            if documents and full:
                yield DocumentBlock(documents, afters, is_json, disk_bytes)
                documents, afters, size = [], [], 0
            documents.append(read.document)
            afters.append((number, read.after))
            size += len(read.document)
            is_json = read.is_json
            disk_bytes = before_bytes + read.disk_bytes
        before_bytes += file.size_bytes or 0
    if documents:
        yield DocumentBlock(documents, afters, is_json, disk_bytes)
