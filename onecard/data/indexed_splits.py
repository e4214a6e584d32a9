"""What of datatrove's or Megatron's files is for training, and what for validation.

Files, or folders, that are named train and val are these splits. Both programs write one set of files, though: then the
last documents of each file are for validation, as large a share of the tokens as `onecard data prepare` would take.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.data.folders import DATATROVE, MEGATRON, SPLIT_FOLDERS
from onecard.data.indexed import IndexedFile, indexed_file
from onecard.data.split import share_of
from onecard.data.tokens import TokenFile, TokenType, damaged

if TYPE_CHECKING:
    import numpy as np
else:
    from onecard.data.extras import numpy as np

_NAMED = {
    split: re.compile(rf"(^|[/_.-]){names}([/_.-]|$)", re.IGNORECASE)
    for split, names in (("train", "train(ing)?"), ("val", "val(id|idation)?"), ("test", "test"))
}


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The files of both splits, and what they say about themselves."""

    train: list[TokenFile]
    val: list[TokenFile]
    documents: dict[str, int] | None = None  # in each split; None if not every file has an index
    held_out: str = ""  # in words, what validation takes from the files of training
    tokenizer: str = ""
    dtype_is_known: bool = False
    is_indexed: bool = False  # of datatrove or Megatron


def indexed_files(place: Path) -> list[Path]:
    """The token files of datatrove or Megatron in a folder, or `place` itself; none for data of others."""
    if place.is_file():
        return [place]
    if (place / "train.bin").exists() and not (place / "train.idx").exists():
        return []  # nanoGPT's
    for folders in ([place], [place / name for name in SPLIT_FOLDERS]):
        for ending in (DATATROVE, MEGATRON):
            if found := sorted(path for folder in folders for path in folder.glob(f"*{ending}")):
                return [path if ending == DATATROVE else path.with_suffix(".bin") for path in found]
    return []


def indexed_splits(place: Path, paths: Iterable[Path], *, dtype: TokenType) -> Splits:
    """The splits of these files, which `indexed_files` found. ConfigError if one of them is damaged."""
    files = {path: indexed_file(path, dtype=dtype) for path in paths}
    _all_finished(files)

    def named(split: str) -> Callable[[Path], bool]:
        return lambda path: bool(_NAMED[split].search(str(path.relative_to(place)) if path != place else ""))

    val = list(filter(named("val"), files))
    train = list(filter(named("train"), files)) or [
        path for path in files if path not in val and not named("test")(path)
    ]
    used = [files[path] for path in (*train, *val)]
    if val:
        sides = [[(files[path], 0, files[path].stored.count) for path in split] for split in (train, val)]
        held_out = ""
    else:
        sides, held_out = _held_out(used)
    return Splits(
        train=[_part(*part) for part in sides[0]],
        val=[_part(*part) for part in sides[1]],
        documents={split: sum(map(_documents, side)) for split, side in zip(("train", "val"), sides, strict=True)}
        if all(file.ends is not None for file in used)
        else None,
        held_out=held_out,
        tokenizer=Counter(file.tokenizer for file in used).most_common(1)[0][0] if used else "",
        dtype_is_known=all(file.dtype_is_known for file in used),
        is_indexed=True,
    )


_Part = tuple[IndexedFile, int, int]  # a file, and its tokens from the first to before the second


def _held_out(files: Sequence[IndexedFile]) -> tuple[list[list[_Part]], str]:
    """Both sides of each file, and the second in words: its last documents, or its last tokens without an index."""
    share = share_of(sum(file.stored.count for file in files))
    cuts = [_cut(file, share) for file in files]
    if all(cut == file.stored.count for file, cut in zip(files, cuts, strict=True)):  # few documents: the very last
        for index, file in reversed(list(enumerate(files))):
            if file.ends is not None and len(inner := _inner(file)):
                cuts[index] = int(inner[-1])
                break
    train = [(file, 0, cut) for file, cut in zip(files, cuts, strict=True)]
    val = [(file, cut, file.stored.count) for file, cut in zip(files, cuts, strict=True) if cut < file.stored.count]
    what = "documents" if all(file.ends is not None for file in files) else "tokens"
    where = "each file" if len(files) > 1 else "the file"
    return [train, val], f"the last {what} of {where}" if val else ""


def _cut(file: IndexedFile, share: float) -> int:
    """Where the last tokens begin that are about this share of a file: where a document ends, if that is known."""
    wanted = round(file.stored.count * (1 - share))
    if file.ends is None:
        return wanted
    after = int(np.searchsorted(file.ends, wanted))
    around = [int(end) for end in file.ends[max(0, after - 1) : after + 1] if end]
    return min(around, key=lambda end: abs(end - wanted), default=file.stored.count)


def _inner(file: IndexedFile) -> np.ndarray:
    assert file.ends is not None
    return file.ends[(file.ends > 0) & (file.ends < file.stored.count)]


def _part(file: IndexedFile, begin: int, end: int) -> TokenFile:
    stored = file.stored
    return replace(stored, first_byte=stored.first_byte + begin * stored.token_bytes, count=end - begin)


def _documents(part: _Part) -> int:
    file, begin, end = part
    assert file.ends is not None
    first, after = np.searchsorted(file.ends, (begin, end), side="right")
    return int(after - first) if begin else int(after)


def _all_finished(files: dict[Path, IndexedFile]) -> None:
    """ConfigError if a file lacks the index that others have: datatrove writes it when the file is complete."""
    without = [path for path, file in files.items() if file.ends is None]
    if without and len(without) < len(files):
        raise damaged(
            without[0], "it has no index, and others beside it have one: the job that writes it has not ended"
        )
