"""Data sets that are known by their name: what can be said of them before they are on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from onecard.config.schema import GPT2_VOCABULARIES

_, _GPT2 = GPT2_VOCABULARIES  # what nanoGPT builds where the data has no meta.pkl


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """A data set as its own preparation script makes it."""

    name: str
    vocab_size: int  # of a model trained on it
    train_tokens: int | None = None  # None where it differs from machine to machine
    val_tokens: int | None = None
    source: str


EMBEDDED = KnownData(
    name="python-stdlib",
    vocab_size=256,  # bytes
    source="onecard's own, made of this Python's standard library",
)
KNOWN_DATA = {
    known.name: known
    for known in (
        EMBEDDED,
        KnownData(
            name="shakespeare_char",
            vocab_size=65,  # characters
            train_tokens=1_003_854,
            val_tokens=111_540,
            source="nanoGPT, data/shakespeare_char/readme.md and prepare.py",
        ),
        KnownData(
            name="shakespeare",
            vocab_size=_GPT2,
            train_tokens=301_966,
            val_tokens=36_059,
            source="nanoGPT, data/shakespeare/readme.md",
        ),
        KnownData(
            name="openwebtext",
            vocab_size=_GPT2,
            train_tokens=9_035_582_198,
            val_tokens=4_434_897,
            source="nanoGPT, data/openwebtext/readme.md",
        ),
    )
}


def known_data(dataset: str) -> KnownData | None:
    """The known data set that a config's `dataset` names, as `NAME` or as a path that ends in it; None for others."""
    return KNOWN_DATA.get(PurePath(dataset).name)
