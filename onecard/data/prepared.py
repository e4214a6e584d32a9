"""What a preparation ended with, and what a person should know about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard import units
from onecard.data.manifest import Counts
from onecard.data.split import SHARES, SPLITS, VAL_TOKENS
from onecard.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a preparation ended with."""

    folder: Path
    meta: dict[str, Any]
    counts: Counts
    new_tokens: int  # written by this process
    seconds: float  # of this process


def findings_of(prepared: Prepared) -> tuple[Finding, ...]:
    """What a person should know about the data that were made."""
    meta = prepared.meta
    train, val = (sum(entry["tokens"] for entry in meta[split]) for split in SPLITS)
    share, total = meta["val_share"], train + val
    found = []
    if val < VAL_TOKENS:
        better = next((each for each in SHARES if each > share and each * total >= 1.1 * VAL_TOKENS), None)
        enough = units.count(VAL_TOKENS / SHARES[-1])
        found.append(
            Finding(
                rule="val-set-tiny",
                severity="warn",
                sure="high",
                what=f"the validation data has {val:,} tokens, fewer than {VAL_TOKENS:,}",
                why=f"{share:.0%} of the documents are for validation, by the hash of their text, and there are "
                f"{total:,} tokens in all; the fewer, the noisier every evaluation",
                fix=f"--val-share {better} --out {prepared.folder}-2"
                if better
                else f"more data: a share of {SHARES[-1]:.0%} is enough from {enough} tokens on",
                seen=(f"{meta['documents']['val']:,} documents",),
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
