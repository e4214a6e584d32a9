"""nanoGPT's meta.pkl: read without running anything in it, and written.

A pickle is a program. We accept only those that build texts, numbers, lists and dictionaries: every instruction is
checked before the first one runs, and the class lookup that attacks need always fails.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, NoReturn

from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from onecard.untrusted_pickle import DATA, check

MAX_BYTES = 2**24  # nanoGPT's own have about a kilobyte; a large character set has some hundred


@dataclass(frozen=True)
class NanogptMeta:
    """What meta.pkl says; `characters` in the order of their ids, None if it does not map characters."""

    vocab_size: int
    characters: tuple[str, ...] | None


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def read_meta(raw: bytes) -> NanogptMeta:
    """The vocabulary in a meta.pkl; ValueError, saying what is wrong, if it is anything else."""
    meta = _harmless(raw)
    if not isinstance(meta, dict) or type(size := meta.get("vocab_size")) is not int or not 0 < size <= 2**24:
        raise ValueError("it holds no vocab_size")
    letters = meta.get("itos")
    if not isinstance(letters, dict) or len(letters) != size:
        return NanogptMeta(size, None)
    characters = tuple(letters.get(index) for index in range(size))
    if not all(map(_is_text, characters)) or len(set(characters)) != size:
        return NanogptMeta(size, None)
    return NanogptMeta(size, characters)  # type: ignore[arg-type]  # all are text, as just checked


def _is_text(letter: object) -> bool:
    """Whether a letter can be written to a file: half of a surrogate pair cannot."""
    return isinstance(letter, str) and not any("\ud800" <= each <= "\udfff" for each in letter)


def characters_meta(tokenizer: Tokenizer) -> dict[str, object] | None:
    """What meta.pkl must hold so that nanoGPT's sample.py can decode this tokenizer's ids; None if it cannot.

    nanoGPT knows characters and GPT-2's tokens. Bytes become the 256 characters of Latin-1: ASCII text reads right.
    """
    match tokenizer:
        case CharacterTokenizer():
            characters = list(tokenizer.characters)
        case ByteTokenizer():
            characters = [chr(byte) for byte in range(256)]
        case _:
            return None
    itos = dict(enumerate(characters))
    return {"vocab_size": len(characters), "itos": itos, "stoi": {each: index for index, each in itos.items()}}


def _harmless(raw: bytes) -> Any:
    """The data in a pickle; ValueError if it is damaged or more than data."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES:,} bytes")
    check(raw, instructions=DATA, calls=lambda _: False)
    try:
        return _NoClasses(io.BytesIO(raw)).load()
    except Exception as problem:
        raise ValueError("it is damaged") from problem
