"""The result of a preparation, and what a person should know about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from onecard import units
from onecard.data.manifest import Counts
from onecard.data.sources import left_out
from onecard.data.split import SHARES, SPLITS, VAL_TOKENS, both_sides
from onecard.data.unusable import WHOLE_FILES, cure_of
from onecard.files import free_name
from onecard.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The result of a preparation."""

    folder: Path
    settings: Mapping[str, Any]  # what was asked for
    meta: dict[str, Any]
    counts: Counts
    new_tokens: int  # written by this process
    new_documents: int = 0  # of them
    seconds: float  # of this process

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each split."""
        return {split: sum(int(entry["tokens"]) for entry in self.meta[split]) for split in SPLITS}


def files_left_out(words: Sequence[str], *, out: str) -> Iterator[Finding]:
    """What of the named folders is not read because they have tables."""
    for word in words:
        beside = [file.path for file in left_out(word, but=Path(out)) if file.path and str(file.path) not in words]
        if beside:
            many = f"{len(beside):,} files" if len(beside) > 1 else "a file"
            yield Finding(
                rule="files-left-out",
                severity="warn",
                sure="high",
                what=f"{many} of {word} {'were' if len(beside) > 1 else 'was'} not read, such as {beside[0].name}",
                why="of a folder with parquet or JSON lines only these are read",
                fix=f"name them, too: onecard data prepare {quote(word)} {quote(str(beside[0]))}"
                f"{' …' if len(beside) > 1 else ''} --out {quote(out)}",
                seen=tuple(map(str, beside[:3])),
            )


def findings_of(prepared: Prepared) -> tuple[Finding, ...]:
    """What a person should know about the new data."""
    meta = prepared.meta
    train, val = (prepared.tokens[split] for split in SPLITS)
    share, total = meta["val_share"], train + val
    found = []
    if not train or not val:
        found.append(_empty_split(prepared, "val" if train else "train"))
    elif val < VAL_TOKENS:
        better = next((each for each in SHARES if each > share and each * total >= 1.1 * VAL_TOKENS), None)
        enough = units.count(VAL_TOKENS / SHARES[-1])
        found.append(
            Finding(
                rule="val-set-tiny",
                severity="warn",
                sure="high",
                what=f"the validation data has {val:,} tokens, fewer than {VAL_TOKENS:,}",
                why=f"{share:.0%} of the documents are for validation, by a hash of their text, and there are "
                f"{total:,} tokens in all; an evaluation reads each at most once, so few give a noisy loss",
                fix=f"--val-share {better} --out {free_name(prepared.folder)}"
                if better
                else f"use more data: a share of {SHARES[-1]:.0%} is enough from {enough} tokens on",
                seen=(f"{meta['documents']['val']:,} documents",),
            )
        )
    if train and val and not share / 2 <= val / total <= 2 * share:
        found.append(
            Finding(
                rule="split-uneven",
                severity="warn",
                sure="high",
                what=f"the validation data is {100 * val / total:.2g}% of the tokens, not {100 * share:.2g}%",
                why=f"each document goes to one split as a whole, by a hash of its text, and there are only "
                f"{prepared.counts.kept:,} of them, of uneven size",
                fix="use more documents (a larger --tokens, or none): with hundreds of them the share evens out",
                seen=(f"{meta['documents']['val']:,} documents, {val:,} tokens",),
            )
        )
    asked = prepared.settings.get("vocab_size")
    if asked is not None and asked != meta["vocab_size"]:
        found.append(
            Finding(
                rule="vocabulary-smaller",
                severity="info",
                sure="high",
                what=f"the tokenizer has {meta['vocab_size']:,} tokens, not the {asked:,} of --vocab_size",
                why="BPE joins byte pairs until none is left, and this source has no more of them",
                fix=f"nothing, if this will do: training takes {meta['vocab_size']:,} from the data; or use more text",
            )
        )
    if left_out := [why for why in WHOLE_FILES if why in prepared.counts.bad]:
        first = prepared.counts.first_bad
        number = sum(prepared.counts.bad[why] for why in left_out)
        found.append(
            Finding(
                rule="file-left-out",
                severity="warn",
                sure="high",
                what=f"{number:,} file{'' if number == 1 else 's'} could not be read, or not to the end",
                why="; ".join(f"{first[why]}: {why}" for why in left_out),
                fix=cure_of(left_out[0], first[left_out[0]]),
            )
        )
    bad, kept = sum(prepared.counts.bad.values()), prepared.counts.kept
    if bad > 0.05 * (bad + kept):
        found.append(
            Finding(
                rule="many-bad-documents",
                severity="warn",
                sure="high",
                what=f"{bad:,} of {bad + kept:,} documents could not be used",
                why=", ".join(f"{number:,} {why}" for why, number in prepared.counts.bad.items()),
                fix="look at the first of each kind, above",
                seen=tuple(f"{why}: {place}" for why, place in prepared.counts.first_bad.items()),
            )
        )
    return tuple(found)


def _empty_split(prepared: Prepared, split: str) -> Finding:
    """The finding that a split got no document, with the share that would give it one."""
    documents, share = prepared.counts.kept, prepared.meta["val_share"]
    one_text = len(prepared.counts.lowest) == 1
    why = f"{share:.4g} of the documents are for validation, by a hash of their text"
    return Finding(
        rule="empty-split",
        severity="warn",
        sure="high",
        what=f"there is no {'validation' if split == 'val' else 'training'} data, and onecard train needs both",
        why="there is one document, and a document is never cut"
        if documents == 1
        else "all documents have the same text, and a document is never cut"
        if one_text
        else f"{why}; of these {documents:,} documents that is {'none' if split == 'val' else 'all of them'}",
        fix=both_sides(prepared.counts.lowest, prepared.folder),
        seen=(f"{documents:,} document{'' if documents == 1 else 's'}",),
    )
