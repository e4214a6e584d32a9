"""What the user names as a source, as files in a fixed order: paths, folders, standard input, Python's own source."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onecard.config.names import nearest_file
from onecard.data import stdlib
from onecard.errors import ConfigError, OnecardError
from onecard.opening import NotAFile, cannot_read, check_regular

Kind = Literal["parquet", "jsonl", "text", "document"]  # text: many documents in a file; document: one

STDIN, STANDARD_INPUT = "-", "standard input"  # as typed, and as shown
_JSON = frozenset({".jsonl", ".ndjson", ".json"})
_PACKED = {".gz": 3.0, ".zst": 3.0, ".bz2": 4.0, ".xz": 4.0}  # with the bytes of text in one packed byte, roughly
_PARQUET_EXPANDS = 2.0  # FineWeb: 10 billion tokens of sample-10BT in some 28 GB of parquet
_SKIPPED = frozenset("__pycache__ node_modules".split())
_TABLES = ("parquet", "jsonl")
_ABOUT = re.compile(r"(readme|licen[cs]e|dataset_infos?)\b|.*\.json$", re.I)  # beside tables: no data
_DATA_SUFFIXES = frozenset({".parquet", ".txt", ".md", *_JSON, *_PACKED})


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a source. `path` is None for standard input, and on the hub until it is fetched."""

    name: str
    kind: Kind
    packing: str | None = None  # the suffix of its compression
    size_bytes: int | None  # None: not known before it is read
    path: Path | None = None

    @property
    def text_bytes(self) -> int | None:
        """Roughly, the bytes of text it holds."""
        if self.size_bytes is None:
            return None
        expands = _PARQUET_EXPANDS if self.kind == "parquet" else _PACKED.get(self.packing or "", 1.0)
        return round(self.size_bytes * expands)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files to read, one after another."""

    name: str
    files: tuple[SourceFile, ...]
    revision: str | None = None  # of a dataset on the hub

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all files on disk; None if not known."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def text_bytes(self) -> int | None:
        """Roughly, the bytes of all texts; None if not known."""
        sizes = [file.text_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def digest(self, count: int) -> str:
        """A hash of the names and sizes of the first `count` files."""
        return hashlib.sha256(repr([(file.name, file.size_bytes) for file in self.files[:count]]).encode()).hexdigest()


def local_source(words: Sequence[str], *, but: Path) -> Source | None:
    """The local files that the words name, without those in the folder `but`; None if there are none."""
    files: list[SourceFile] = []
    for word in words:
        found = local_files(word, but=but)
        if found is None and len(words) > 1:
            raise missing([word])
        if found is None:
            return None
        files += found
    return Source(name=", ".join(words[:3]) + (" …" if len(words) > 3 else ""), files=tuple(files))


def local_files(word: str, *, but: Path | None = None) -> list[SourceFile] | None:
    """The local files that `word` names, in order, without those in the folder `but`; None if there are none."""
    if word == STDIN:
        return [SourceFile(name=STANDARD_INPUT, kind="text", size_bytes=None)]
    if word == stdlib.NAME:
        root = Path(sysconfig.get_path("stdlib"))
        return [_file(path, name=name, alone=False) for name, path, _ in stdlib.source_files(root)]
    path = Path(word)
    try:
        if path.is_dir():
            return _folder(path, but=but)
        if not path.exists():
            return None
        check_regular(path)
        return [_file(path, name=path.name, alone=True)]
    except (OSError, ValueError) as problem:  # no permission; a name with a NUL, or too long
        raise unreadable(word[:200], problem) from problem


def kind_of(name: str, *, alone: bool) -> tuple[Kind, str | None]:
    """What a file of this name holds, and its compression; `alone`: named by itself, not found in a folder."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes[-2:]]
    packing = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else None
    last = suffixes[-1] if suffixes else ""
    if last == ".parquet" and packing is None:
        return "parquet", None
    if last in _JSON and (alone or packing or last != ".json"):  # a .json in a folder is rarely a table
        return "jsonl", packing
    return ("text" if alone else "document"), packing


def has_data_suffix(word: str) -> bool:
    """Whether a name surely means a file."""
    return Path(word).suffix.lower() in _DATA_SUFFIXES


def missing(words: Sequence[str]) -> ConfigError:
    """The error for a source that does not exist."""
    word = words[0]
    near = nearest_file(Path(word).name, _neighbours(Path(word)))
    return ConfigError(
        f"there is no source {word[:200]}",
        why="there is no such file or folder; a dataset on the hub is owner/name, fineweb or fineweb-edu",
        fix=f"did you mean {Path(word).parent / near} ?" if near else f"onecard data prepare {stdlib.NAME} --out DIR",
        name="no-such-source",
    )


def unreadable(name: str, problem: Exception) -> OnecardError:
    return cannot_read(name, problem) or ConfigError(
        f"{name} cannot be read",
        why=getattr(problem, "strerror", None) or str(problem),
        fix=f"name {STDIN}, and give it as {STANDARD_INPUT}: < {name}"
        if isinstance(problem, NotAFile)
        else f"look at `ls -l {name}`",
        name="unreadable-source",
    )


def _folder(root: Path, *, but: Path | None) -> list[SourceFile]:
    """The files below a folder, by name: parquet and JSON lines if there are any, else every file, as one text each."""
    found = _below(root, but=but)
    return [file for file in found if file.kind in _TABLES] or found  # a README beside them is not data


def left_out(word: str, *, but: Path | None = None) -> list[SourceFile]:
    """The files of a folder that are not read because it has tables, but for those that tell of the data."""
    files = local_files(word, but=but) or []
    if not files or files[0].kind not in _TABLES or not Path(word).is_dir():
        return []
    beside = [file for file in _below(Path(word), but=but) if file.kind not in _TABLES]
    return [file for file in beside if not _ABOUT.match(Path(file.name).name)]


def _below(root: Path, *, but: Path | None) -> list[SourceFile]:
    """All files below a folder that are not hidden, by name."""
    found = []
    own = but.resolve() if but else None
    for folder, folders, names in os.walk(root):
        shown = (name for name in folders if name not in _SKIPPED and not name.startswith("."))
        folders[:] = [name for name in shown if Path(folder, name).resolve() != own]
        paths = [Path(folder, name) for name in names if not name.startswith(".")]
        found += [_file(path, name=path.relative_to(root).as_posix(), alone=False) for path in paths if path.is_file()]
    return sorted(found, key=lambda file: file.name)


def _file(path: Path, *, name: str, alone: bool) -> SourceFile:
    kind, packing = kind_of(name, alone=alone)
    return SourceFile(name=name, kind=kind, packing=packing, size_bytes=path.stat().st_size, path=path)


def _neighbours(path: Path) -> list[str]:
    try:
        return sorted(child.name for child in path.parent.iterdir())
    except (OSError, ValueError):
        return []
