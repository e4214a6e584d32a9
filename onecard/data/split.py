"""Which documents are for validation: how many, and how they are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from onecard.data.sources import Source
from onecard.files import free_name

SPLITS = ("train", "val")
VAL_TOKENS = 1_000_000  # enough for a validation set: some 0.014 nats of standard error (models/evaluation.py)
SHARES = (0.01, 0.02, 0.05, 0.1)
_BYTES_PER_TOKEN = 4.5  # of English in GPT-2's tokens: 4.54 in FineWeb's samples


def val_share(source: Source, tokens: int | None) -> float:
    """The share of documents for validation: the smallest of SHARES that should give 1M tokens, as far as is known."""
    known = [tokens] if tokens else []
    known += [round(source.text_bytes / _BYTES_PER_TOKEN)] if source.text_bytes else []
    return share_of(min(known)) if known else SHARES[0]


def share_of(tokens: int) -> float:
    """The smallest of SHARES that should give VAL_TOKENS of these."""
    return next((share for share in SHARES if share * tokens >= 1.2 * VAL_TOKENS), SHARES[-1])


def share_with_some(share: float, hashes: Iterable[int]) -> float:
    """The share if it takes any document with these hashes, else the smallest that takes one and leaves others.

    If all documents are copies of one, no share does that, and the share stays. It looks at 20 times as many documents
    as it should take to meet one: the chance of meeting none is then e**-20.
    """
    threshold = val_threshold(share)
    met = set()
    for each in islice(hashes, round(20 / share)):
        if each < threshold:
            return share
        met.add(each)
    return share_taking(sorted(met)[:2]) or share


def share_taking(lowest: Sequence[int]) -> float | None:
    """The share with the fewest digits that takes the first of two hashes but not the second; None if there is none."""
    if len(lowest) < 2:
        return None
    first, second = lowest
    shares = ((first * 10**digits // 2**64 + 1) / 10**digits for digits in range(2, 17))
    return next((share for share in shares if first < val_threshold(share) <= second), None)


def both_sides(lowest: Sequence[int], folder: Path) -> str:
    """What to change in the command if all documents fell into one split, from their two lowest hashes, if known."""
    share = share_taking(lowest) if lowest else 0.5
    if share is not None:
        return f"--val-share {share} --out {free_name(folder)}"
    return (
        f"--out {free_name(folder)}, with more text or a larger --tokens "
        "(a file given by name, not by its folder, is cut about every 16 KiB, and at <|endoftext|>)"
    )


def val_threshold(share: float) -> int:
    """Documents whose text has a hash below this are for validation."""
    return min(2**64 - 1, round(share * 2**64))
