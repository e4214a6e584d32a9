"""Token files with an index of their documents: datatrove's and Megatron's. Nothing in them is ever run.

| of | file | holds |
|---|---|---|
| datatrove | NAME.ds | tokens of 2 or 4 bytes, and nothing else |
| | NAME.ds.index | the token after the end of each document, as uint64 |
| | NAME.ds.metadata | text: TOKENIZER|BYTES of a token, then the number of tokens |
| Megatron | NAME.bin | tokens, and nothing else |
| | NAME.idx | a header, the length and the place of each sequence, the sequence after the end of each document |

(huggingface/datatrove, src/datatrove/pipeline/tokens/tokenizer.py; NVIDIA/Megatron-LM,
megatron/core/datasets/indexed_dataset.py.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.data.folders import DATATROVE, INDEX, MEGATRON, METADATA
from onecard.data.tokens import TokenFile, TokenType, damaged, token_file, unreadable
from onecard.errors import ConfigError
from onecard.opening import cannot_read, open_file, read_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ends = npt.NDArray[Any]  # where each document ends, in tokens, in rising order
else:
    from onecard.data.extras import numpy as np

    Ends = Any


_LONGEST_METADATA_BYTES = 2**16
_TYPES: dict[int, TokenType] = {2: "uint16", 4: "uint32"}  # by the bytes of a token
_UNKNOWN = "Unknown Tokenizer"  # what datatrove writes where none was named
_MAGIC, _VERSION = b"MMIDIDX\0\0", 1
_HEADER_BYTES = 34  # the magic, the version, a type, the numbers of sequences and of documents
_MEGATRON_TYPES: dict[int, tuple[str, int]] = {  # its code: a type of NumPy, its bytes
    1: ("uint8", 1),
    2: ("int8", 1),
    3: ("int16", 2),
    4: ("int32", 4),
    5: ("int64", 8),
    6: ("float64", 8),
    7: ("float32", 4),
    8: ("uint16", 2),
}
_READABLE: dict[str, TokenType] = {"uint16": "uint16", "int32": "uint32"}  # what Megatron writes; no id is negative
_AT_ONCE = 2**22  # entries of an index looked at together


@dataclass(frozen=True, kw_only=True)
class IndexedFile:
    """One file of tokens, and what is known about them."""

    stored: TokenFile
    ends: Ends | None  # None without an index
    tokenizer: str = ""  # as datatrove's metadata names it
    dtype_is_known: bool = True  # otherwise it was taken to be what the caller said


def is_indexed(path: Path) -> bool:
    """Whether this is a token file of datatrove or Megatron, by its name and what is beside it."""
    return path.suffix == DATATROVE or (path.suffix == ".bin" and path.with_suffix(MEGATRON).exists())


def indexed_file(path: Path, *, dtype: TokenType = "uint16") -> IndexedFile:
    """A file of either, checked against its index as a whole; `dtype` counts only if nothing else tells the type."""
    return _datatrove(path, dtype) if path.suffix == DATATROVE else _megatron(path)


def last_tokens(path: Path, *, most: int) -> list[int]:
    """The last token of each of the first `most` documents in a file; none without an index."""
    found = indexed_file(path)
    if found.ends is None:
        return []
    tokens = found.stored.mapped()
    return [int(tokens[end - 1]) for end in found.ends[:most].tolist() if end]


def _datatrove(path: Path, dtype: TokenType) -> IndexedFile:
    tokenizer, token_bytes, stated = _metadata(path)
    ends = _index(path)
    size = _size(path)
    if ends is not None:
        last = int(ends[-1]) if len(ends) else 0
        by_index = size // last if last and size % last == 0 else None
        if by_index not in _TYPES and (last or size):
            raise damaged(path, f"its index says {last:,} tokens, of 2 or 4 bytes, but it has {size:,} bytes")
        if by_index and token_bytes not in (None, by_index):
            raise damaged(path, f"its metadata says {token_bytes} bytes a token, but by its index they have {by_index}")
        token_bytes = by_index or token_bytes
    file = token_file(path, dtype=_TYPES[token_bytes] if token_bytes else dtype, raw=True)
    if stated not in (None, file.count):
        raise damaged(path, f"its metadata says {stated:,} tokens, but it has {file.count:,}")
    return IndexedFile(stored=file, ends=ends, tokenizer=tokenizer, dtype_is_known=token_bytes is not None)


def _metadata(path: Path) -> tuple[str, int | None, int | None]:
    """The tokenizer, the bytes of a token and the number of tokens, as far as the metadata of a .ds file says."""
    beside = path.with_name(path.name + METADATA)
    try:
        lines = read_file(beside, most_bytes=_LONGEST_METADATA_BYTES).decode().splitlines()
    except FileNotFoundError:
        return "", None, None
    except (OSError, ValueError) as problem:
        why = f"it cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise cannot_read(beside, problem) or damaged(beside, why) from problem
    name, bar, token_bytes = (lines or [""])[0].rpartition("|")
    if not bar:  # as older versions of datatrove wrote it
        name, token_bytes = token_bytes, ""
    count = lines[1] if len(lines) > 1 else ""
    if (token_bytes and token_bytes not in ("2", "4")) or (count and not _is_count(count)):
        raise damaged(beside, "it should hold TOKENIZER|2 or TOKENIZER|4, and the number of tokens in the next line")
    tokenizer = "" if name.startswith(_UNKNOWN) else name
    return tokenizer, int(token_bytes) if token_bytes else None, int(count) if count else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _index(path: Path) -> Ends | None:
    """The ends in the index of a .ds file, which must rise; None without one."""
    beside = path.with_name(path.name + INDEX)
    if not beside.exists():
        return None
    size = _size(beside)
    if size % 8:
        raise damaged(beside, f"each document takes 8 bytes, and it has {size:,}")
    ends = _entries(beside, "<u8", 0, size // 8)
    if not _rises(ends):
        raise damaged(beside, "documents must end one after the other, and in it they do not")
    return ends


def _megatron(path: Path) -> IndexedFile:
    beside = path.with_suffix(MEGATRON)
    size = _size(beside)
    with _opened(beside) as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES or head[:9] != _MAGIC or int.from_bytes(head[9:17], "little") != _VERSION:
        raise damaged(beside, "it does not begin as Megatron's index does: MMIDIDX, then version 1")
    name, token_bytes = _MEGATRON_TYPES.get(head[17], (f"of type {head[17]}", 0))
    if name not in _READABLE:
        raise ConfigError(
            f"the tokens of {path} are {name}",
            why="Megatron's own preparation writes uint16 or int32, and only these are read",
            fix="make the files again with Megatron's tools/preprocess_data.py, or with onecard data prepare",
            name="wrong-dtype",
        )
    sequences, documents = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    places = _HEADER_BYTES + 4 * sequences
    ended = places + 8 * sequences
    whole = ended + 8 * documents
    if size not in (whole, whole + sequences):  # the last is a mode for each sequence, of images and text
        raise damaged(
            beside, f"its header says {sequences:,} sequences, {documents - 1:,} documents, but it has {size:,} bytes"
        )
    lengths = _entries(beside, "<i4", _HEADER_BYTES, sequences)
    if sequences and int(lengths.min()) < 0:
        raise damaged(beside, "it has a sequence of less than 0 tokens")
    begins = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if not np.array_equal(_entries(beside, "<i8", places, sequences), begins[:-1] * token_bytes):
        raise damaged(beside, "its sequences do not lie one after the other, as their lengths say")
    numbers = _entries(beside, "<i8", ended, documents)
    if not documents or numbers[0] != 0 or numbers[-1] != sequences or not _rises(numbers):
        raise damaged(beside, "its documents are not all of its sequences, one after the other")
    tokens = int(begins[-1])
    if (found := _size(path)) != tokens * token_bytes:
        raise damaged(path, f"its index says {tokens:,} tokens, {tokens * token_bytes:,} bytes, but it has {found:,}")
    stored = replace(token_file(path, dtype=_READABLE[name], raw=True), count=tokens)
    return IndexedFile(stored=stored, ends=begins[numbers[1:]])


def _rises(numbers: Ends) -> bool:
    """Whether no entry is smaller than the one before it; reads a part of the file at a time."""
    starts = range(0, len(numbers), _AT_ONCE)
    return all(bool(np.all(part[1:] >= part[:-1])) for part in (numbers[at : at + _AT_ONCE + 1] for at in starts))


def _entries(path: Path, kind: str, first_byte: int, count: int) -> npt.NDArray[Any]:
    """Entries of an index, read from disk when they are looked at."""
    if count == 0:
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", offset=first_byte, shape=(count,))


def _size(path: Path) -> int:
    with _opened(path) as file:
        return os.fstat(file.fileno()).st_size


def _opened(path: Path) -> Any:
    try:
        return open_file(path)
    except OSError as problem:
        raise unreadable(path, problem) from problem
