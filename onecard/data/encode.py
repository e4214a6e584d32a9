"""Documents to tokens on all cores. The result depends on the documents alone, not on the number of cores."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.blocks import DocumentBlock
from onecard.data.document import MAX_DOCUMENT_BYTES, Bad
from onecard.data.tokenizer_files import kept_tokenizer
from onecard.data.tokenizers import Ids, Tokenizer
from onecard.errors import ConfigError, MachineError

_AHEAD = 2  # blocks per worker that are read before they are needed


@dataclass(frozen=True)
class Encoded:
    """The tokens of a block's good documents, one after another, each with its end-of-text."""

    ids: Ids
    lengths: npt.NDArray[np.int64]  # of each good document, in tokens
    hashes: npt.NDArray[np.uint64]  # of each good document's text
    sizes: npt.NDArray[np.int64]  # of each good document's text, in bytes
    bad: list[tuple[int, Bad]]  # position in the block, and why
    columns: tuple[str, ...] = ()  # of a document without the wanted one


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How documents become tokens: everything a worker needs to know."""

    folder: Path  # where the tokenizer is kept
    said: Mapping[str, Any]  # the tokenizer's part of meta.json
    column: str
    end_first: bool  # llm.c puts end-of-text before a document, nanoGPT after it
    tokenizer: Tokenizer | None = field(default=None, compare=False)  # in a worker, once opened

    def opened(self) -> Encoding:
        """The same with its tokenizer ready."""
        tokenizer = kept_tokenizer(self.folder, self.said, environ=os.environ)
        if tokenizer is None:  # it was there when the preparation began
            raise ConfigError(
                f"the tokenizer in {self.folder} cannot be read",
                why="it was kept there when the preparation began, and has been changed since",
                fix="prepare again, with another --out",
                name="bad-tokenizer",
            )
        return Encoding(
            folder=self.folder, said=self.said, column=self.column, end_first=self.end_first, tokenizer=tokenizer
        )


def content_hash(text: bytes) -> int:
    """The first 64 bits of a text's SHA-256, by which it gets its split and its duplicates are found."""
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def encode_block(block: DocumentBlock, how: Encoding) -> Encoded:
    """The tokens of a block."""
    tokenizer = how.tokenizer
    assert tokenizer is not None
    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], dtype=np.uint32)
    texts: dict[int, tuple[str, bytes]] = {}  # of the good documents, by their position
    bad: dict[int, Bad] = {}
    columns: tuple[str, ...] = ()
    column = how.column if block.is_json else None
    for position, document in enumerate(block.documents):
        found = document if isinstance(document, Bad) else document_text(document, column=column)
        if isinstance(found, Lacking):
            columns, found = columns or found.columns, Bad.NO_TEXT
        if isinstance(found, Bad):
            bad[position] = found
        else:
            texts[position] = found
    ids = _ids([words for words, _ in texts.values()], tokenizer)
    for position, each in zip(list(texts), ids, strict=True):
        if each is None:
            del texts[position]
            bad[position] = Bad.NOT_ENCODED
    good = [each for each in ids if each is not None]
    parts = [part for each in good for part in ((end, each) if how.end_first else (each, end))]
    return Encoded(
        np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32),
        np.array([len(each) + len(end) for each in good], dtype=np.int64),
        np.array([content_hash(text) for _, text in texts.values()], dtype=np.uint64),
        np.array([len(text) for _, text in texts.values()], dtype=np.int64),
        sorted(bad.items()),
        columns,
    )


@dataclass(frozen=True)
class Lacking:
    """A document without the wanted column, and the columns it has."""

    columns: tuple[str, ...]


def document_text(document: bytes, *, column: str | None) -> tuple[str, bytes] | Bad | Lacking:
    """The text of a document, also as UTF-8: one column of a line of JSON, or the document itself."""
    try:
        words, text = document.decode(), document
        if column is not None:
            row = json.loads(words.removeprefix("\ufeff"))  # files with a byte order mark may have been joined
            if not isinstance(row, dict):
                return Bad.NOT_JSON
            if not isinstance(found := row.get(column), str):
                return Lacking(tuple(str(name)[:40] for name in list(row)[:20]))
            words, text = found, found.encode()
    except UnicodeError:  # not UTF-8, or half of a surrogate pair
        return Bad.NOT_UTF8
    except (ValueError, RecursionError):
        return Bad.NOT_JSON
    if len(text) > MAX_DOCUMENT_BYTES:
        return Bad.TOO_LONG
    return (words, text) if words and not words.isspace() else Bad.EMPTY


def _ids(texts: list[str], tokenizer: Tokenizer) -> list[Ids | None]:
    """The ids of each text; None for a text that the tokenizer refuses (tiktoken refuses a million spaces)."""
    try:
        return list(tokenizer.encode_arrays(texts)) if texts else []
    except ValueError:
        return [None] if len(texts) == 1 else [each for text in texts for each in _ids([text], tokenizer)]


def encode_blocks(
    blocks: Iterable[DocumentBlock | None], how: Encoding, *, workers: int
) -> Generator[tuple[DocumentBlock, Encoded], None, None]:
    """Each block with its tokens, in order. One worker is this process; more are `workers` other processes.

    A None among the blocks is a pause: everything before it is yielded before the next block is requested.
    """
    if workers == 1:
        here = how.opened()
        for block in blocks:
            if block is not None:
                yield block, encode_block(block, here)
        return
    how_started = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(how_started)
    context.set_forkserver_preload([__name__, "tiktoken"])  # loaded once; all workers share the memory
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=partial(_begin, how))
    waiting: deque[tuple[DocumentBlock, Future[Encoded]]] = deque()
    try:
        for block in blocks:
            if block is not None:
                waiting.append((block, pool.submit(_encode_here, block.documents, block.is_json)))
            while len(waiting) > (_AHEAD * workers if block is not None else 0):
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    except BrokenProcessPool as problem:
        raise MachineError(
            "a worker process died",
            why="the system killed it, usually because memory ran out; what was written is safe",
            fix="run the same command again, with --workers 1 if it happens again",
            name="worker-died",
        ) from problem
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_here: Encoding | None = None  # in a worker


def _begin(how: Encoding) -> None:
    """Make this process a worker: it leaves Ctrl-C to its parent, and does not outlive it."""
    global _here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core is enough
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    _here = how.opened()


def _encode_here(documents: list[bytes | Bad], is_json: bool) -> Encoded:
    assert _here is not None
    return encode_block(DocumentBlock(documents, [], is_json, 0), _here)
