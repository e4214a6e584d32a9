"""The description of a prepared folder: meta.json for readers, progress.json for continuing a preparation.

meta.json is written when everything is there; `open_folder` reads it. progress.json is replaced as a whole every few
seconds; as long as it says that the preparation is not finished, the folder is not a dataset yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onecard import units
from onecard.data.document import Bad
from onecard.data.folders import META, PROGRESS
from onecard.data.shards import SHARD_TOKENS, Format
from onecard.errors import ConfigError
from onecard.files import write_atomically
from onecard.untrusted_json import BadJson, read_object

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
        said: dict[str, Any] = read_object(folder / PROGRESS, longest_bytes=_LONGEST_BYTES)
        if said.pop("schema") != _SCHEMA:
            raise ValueError("it is from another version")
        counts = said.pop("counts")
        counts |= {key: tuple(counts.get(key, ())) for key in ("columns", "lowest")}
        file, offset = said.pop("place")
        return Progress(**said, counts=Counts(**counts), place=(int(file), int(offset)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _damaged(folder, problem) from problem


def _damaged(folder: Path, problem: Exception) -> ConfigError:
    return ConfigError(
        f"{folder / PROGRESS} cannot be used",
        why=f"it should say how far the preparation is: {str(problem)[:80]}",
        fix=f"remove {folder} and prepare the data again",
        name="preparation-damaged",
    )


def write_meta(folder: Path, said: Mapping[str, Any]) -> None:
    """Write meta.json."""
    text = json.dumps({"schema": _SCHEMA} | dict(said), indent=1, ensure_ascii=False)
    write_atomically(folder / META, (text + "\n").encode())


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json; nothing if there is none. ConfigError if it is not a JSON object."""
    try:
        return read_object(folder / META, longest_bytes=_LONGEST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, BadJson) as problem:
        raise bad_meta(folder, f"it cannot be read: {str(problem)[:80]}") from problem


def bad_meta(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{folder / META} cannot be used",
        why=why,
        fix='prepare the data again, or write it by hand: {"dtype": "uint16", "vocab_size": 50257}',
        name="bad-meta",
    )
