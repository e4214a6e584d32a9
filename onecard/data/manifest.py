"""The description of a prepared folder: meta.json for readers, progress.json for continuing a preparation.

meta.json is written when everything is there; `open_path` reads it. progress.json is replaced as a whole every few
seconds; as long as it says that the preparation is not finished, the folder is not a dataset yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from onecard import units
from onecard.data.document import Bad
from onecard.data.folders import META, PROGRESS
from onecard.data.shards import SHARD_TOKENS, Format
from onecard.errors import ConfigError
from onecard.files import free_name, write_atomically
from onecard.opening import cannot_read
from onecard.untrusted_json import (
    BadJson,
    count,
    list_of,
    mapping,
    mapping_of,
    number,
    optional,
    positive,
    read_object,
    scalar,
    seconds,
    text,
    yes_or_no,
)
from onecard.untrusted_json import field as read_field

_SCHEMA = 1
_LONGEST_BYTES = 64 * units.MIB  # of either file: it may list ten thousands of shards, or of characters


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the content of the folder, and must not change between two parts of one preparation."""

    tokenizer: str
    vocab_size: int | None = None  # for a tokenizer that is learned here
    format: Format = "onecard"
    column: str = "text"
    dedup: bool = False
    val_share: float | None = None  # None: enough for 1M tokens, at most 10 %
    shard_tokens: int = SHARD_TOKENS


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Documents and bytes so far."""

    documents: Mapping[str, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    duplicates: int = 0
    text_bytes: int = 0  # of the documents that were kept
    bad: Mapping[str, int] = field(default_factory=dict)  # by reason
    first_bad: Mapping[str, str] = field(default_factory=dict)  # where each kind came first
    columns: tuple[str, ...] = ()  # of a document without the wanted one
    lowest: tuple[int, ...] = ()  # the two lowest hashes of documents: a larger share for validation takes these first

    @property
    def kept(self) -> int:
        return sum(self.documents.values())

    def plus(
        self,
        *,
        documents: Mapping[str, int] | None = None,
        duplicates: int = 0,
        text_bytes: int = 0,
        bad: Mapping[Bad, list[str]],
        columns: tuple[str, ...],
        lowest: Sequence[int] = (),
    ) -> Counts:
        """These counts plus those of one more block; `bad` has the places of each kind."""
        more = documents or {}
        return Counts(
            documents={split: self.documents[split] + more.get(split, 0) for split in self.documents},
            duplicates=self.duplicates + duplicates,
            text_bytes=self.text_bytes + text_bytes,
            bad=dict(Counter(self.bad) + Counter({str(why): len(places) for why, places in bad.items()})),
            first_bad={str(why): places[0] for why, places in bad.items()} | dict(self.first_bad),
            columns=self.columns or columns,
            lowest=tuple(sorted({*self.lowest, *lowest})[:2]),
        )


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a preparation, with everything needed to continue from it."""

    settings: Mapping[str, Any]  # what must not change between two parts
    tokenizer: Mapping[str, Any] | None = None  # its part of meta.json, once it is saved
    place: tuple[int, int] = (0, 0)  # the number of a file, and a place in it
    files: str = ""  # digest of the files up to there
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the state of each split's files
    files_read: int = 0  # how many there were when all of them had been read; 0 before that
    seen: int = 0  # hashes kept for --dedup
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    finished: bool = False

    @property
    def tokens(self) -> int:
        """Written so far, in both splits."""
        states = self.splits.values()
        return sum(int(state["begun"]) + sum(int(entry["tokens"]) for entry in state["whole"]) for state in states)


def write_progress(folder: Path, progress: Progress) -> None:
    """Replace progress.json."""
    write_atomically(folder / PROGRESS, (json.dumps({"schema": _SCHEMA} | asdict(progress), indent=1) + "\n").encode())


def read_progress(folder: Path) -> Progress | None:
    """How far the preparation in a folder is; None if there is none."""
    try:
        said = read_object(folder / PROGRESS, longest_bytes=_LONGEST_BYTES)
        if said.get("schema") != _SCHEMA:
            raise BadJson("it is from another version")
        values: dict[str, Any] = {name: read_field(said, name, read) for name, read in _PROGRESS.items()}
        return Progress(**values)
    except FileNotFoundError:
        return None
    except (OSError, BadJson) as problem:
        raise cannot_read(folder / PROGRESS, problem) or _damaged(folder, problem) from problem


def _place(said: object) -> tuple[int, int]:
    found = list_of(count)(said)
    if len(found) != 2:
        raise BadJson("is not the number of a file and a place in it")
    return found[0], found[1]


def _entry(said: object) -> dict[str, Any]:
    """A file of tokens, as meta.json lists it."""
    content = mapping(said)
    return {"file": read_field(content, "file", text), "tokens": read_field(content, "tokens", count)} | {
        "sha256": read_field(content, "sha256", text)
    }


def _split(said: object) -> dict[str, Any]:
    content = mapping(said)
    return {"whole": read_field(content, "whole", list_of(_entry)), "begun": read_field(content, "begun", count)}


def _hash(said: object) -> int:
    """64 bits without a sign."""
    if type(said) is not int or not 0 <= said < 2**64:
        raise BadJson("is not a hash")
    return said


def _each_split(said: object) -> dict[str, int]:
    content = mapping(said)
    return {split: read_field(content, split, count) for split in ("train", "val")}


def _settings(said: object) -> dict[str, Any]:
    """The settings of a preparation. Those of this one are compared with them, so only one is used as it is."""
    content = mapping_of(scalar)(said)
    return content | {"val_share": read_field(content, "val_share", optional(number))}


def _counts(said: object) -> Counts:
    content = mapping(said)
    return Counts(
        documents=read_field(content, "documents", _each_split),
        duplicates=read_field(content, "duplicates", count),
        text_bytes=read_field(content, "text_bytes", count),
        bad=read_field(content, "bad", mapping_of(count)),
        first_bad=read_field(content, "first_bad", mapping_of(text)),
        columns=tuple(read_field({"columns": [], **content}, "columns", list_of(text))),
        lowest=tuple(read_field({"lowest": [], **content}, "lowest", list_of(_hash))),
    )


def _tokenizer(said: object) -> dict[str, Any]:
    """What meta.json says of a tokenizer."""
    content = mapping(said)
    read_field(content, "tokenizer", text)
    read_field(content, "vocab_size", positive)
    return content


_PROGRESS: dict[str, Callable[[object], Any]] = {
    "settings": _settings,
    "tokenizer": optional(_tokenizer),
    "place": _place,
    "files": text,
    "splits": mapping_of(_split),
    "files_read": count,
    "seen": count,
    "counts": _counts,
    "seconds": seconds,
    "finished": yes_or_no,
}


def _damaged(folder: Path, problem: Exception) -> ConfigError:
    return ConfigError(
        f"{folder / PROGRESS} cannot be used",
        why=f"it should say how far the preparation is: {str(problem)[:80]}",
        fix=f"put back a copy of it, or prepare into another folder: --out {free_name(folder)}",
        name="preparation-damaged",
    )


def write_meta(folder: Path, said: Mapping[str, Any]) -> None:
    """Write meta.json."""
    content = json.dumps({"schema": _SCHEMA} | dict(said), indent=1, ensure_ascii=False)
    write_atomically(folder / META, (content + "\n").encode(errors="backslashreplace"))  # a file's name may be no UTF-8


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json; nothing if there is none. ConfigError if it is not JSON, or says what cannot be."""
    try:
        meta = read_object(folder / META, longest_bytes=_LONGEST_BYTES)
        return meta | {name: read_field(meta, name, read) for name, read in _META.items() if name in meta}
    except FileNotFoundError:
        return {}
    except (OSError, BadJson) as problem:
        why = f"it cannot be read: {str(problem)[:80]}"
        raise cannot_read(folder / META, problem) or bad_meta(folder, why) from problem


def _source(said: object) -> object:
    """Where the text is from: in words, or with the number of its files."""
    if not isinstance(said, dict):
        return scalar(said)
    content = mapping(said)
    return content | {
        "name": read_field(content, "name", optional(text)),
        "files": read_field(content, "files", optional(count)),
    }


def _documents(said: object) -> dict[str, Any]:
    content = mapping(said)
    return content | {split: read_field(content, split, count) for split in ("train", "val") if split in content}


# What is shown or added up; what opens the token files is checked where they are opened.
_META: dict[str, Callable[[object], Any]] = {
    "source": _source,
    "documents": _documents,
    "text_bytes": count,
    "val_share": optional(number),
}


def written_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a preparation that is finished; ConfigError if it does not say all that `write_meta` wrote."""
    meta = read_meta(folder)
    try:
        return meta | {name: read_field(meta, name, read) for name, read in _WRITTEN.items()}
    except BadJson as problem:
        raise bad_meta(folder, str(problem)) from problem


def _format(said: object) -> str:
    if said not in get_args(Format):
        raise BadJson(f"is not one of {', '.join(get_args(Format))}")
    return text(said)


_WRITTEN: dict[str, Callable[[object], Any]] = {
    **_META,
    **dict.fromkeys(("train", "val"), list_of(_entry)),
    "documents": _each_split,
    "val_share": number,
    "tokenizer": text,
    "vocab_size": positive,
    "dtype": text,
    "format": _format,
}


def bad_meta(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{folder / META} cannot be used",
        why=why,
        fix='put back a copy of it, or write it by hand: {"dtype": "uint16", "vocab_size": 50257}',
        name="bad-meta",
    )
