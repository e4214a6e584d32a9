"""Which documents are for validation: how many, and by what."""

from __future__ import annotations

from onecard.data.sources import Source

SPLITS = ("train", "val")
VAL_TOKENS = 1_000_000  # what a validation set should have: its standard error is then some 0.003 nats
SHARES = (0.01, 0.02, 0.05, 0.1)
_BYTES_PER_TOKEN = 4.5  # of English in GPT-2's tokens: 4.54 in FineWeb's samples


def val_share(source: Source, tokens: int | None) -> float:
    """The share of documents for validation: the smallest of a few that should give 1M tokens, from what is known."""
    known = [tokens] if tokens else []
    known += [round(source.text_bytes / _BYTES_PER_TOKEN)] if source.text_bytes else []
    if not known:
        return SHARES[0]
    return next((share for share in SHARES if share * min(known) >= 1.2 * VAL_TOKENS), SHARES[-1])


def val_threshold(share: float) -> int:
    """Documents whose text has a hash below this are for validation."""
    return min(2**64 - 1, round(share * 2**64))
