"""Text to token ids and back: bytes, characters, and GPT-2's byte pairs from a file on this machine.

Hugging Face tokenizers are in tokenizer_json.py; which one a data folder has, in tokenizer_files.py.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onecard import units
from onecard.data.extras import extra
from onecard.data.home import homes
from onecard.errors import ConfigError, OnecardError, unless_machine_failed
from onecard.opening import read_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.uint32]
else:
    from onecard.data.extras import numpy as np

    Ids = Any

if TYPE_CHECKING:
    from onecard.data.tokens import Tokens

MOST_BYTES = 256 * units.MIB  # of a tokenizer's file; the largest in use have some 30 MB


class Tokenizer(Protocol):
    """What preparing data, sampling and bits per byte need from a tokenizer."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end_of_text(self) -> int | None:
        """The id between documents; None if there is none."""

    def encode(self, text: str) -> list[int]: ...
    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, fast for many texts; ValueError if one of them cannot be encoded."""

    def decode(self, ids: Iterable[int]) -> str: ...
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 text of one token; empty for ids without text."""


class ByteTokenizer:
    """UTF-8 bytes as they are; byte 0, which source text never has, ends a document."""

    name = "bytes"
    vocab_size = 256
    end_of_text: int | None = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="replace"))

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        if any("\0" in text for text in texts):
            raise ValueError("the text contains byte 0, which ends a document")
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if 0 < token < self.vocab_size else b""  # 0 ends a document


class CharacterTokenizer:
    """One id per character, in the order given, as in nanoGPT's character-level data."""

    name = "characters"
    end_of_text: int | None = None

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        self.vocab_size = len(self.characters)
        self._ids = {character: index for index, character in enumerate(self.characters)}

    def encode(self, text: str) -> list[int]:
        if unknown := sorted(set(text) - self._ids.keys()):
            raise ConfigError(
                f"the text has {len(unknown)} characters that the data does not have: {''.join(unknown)[:20]!r}",
                why=f"this model knows {self.vocab_size} characters: {''.join(self.characters)[:80]!r}",
                fix="write the text without them",
                name="unknown-character",
            )
        return [self._ids[character] for character in text]

    @cached_property
    def _ids_by_code(self) -> npt.NDArray[np.int64]:
        """The id of every code point up to the largest in use; -1 where there is none."""
        of = {
            ord(letter): index for letter, index in self._ids.items() if len(letter) == 1
        }  # a meta.pkl may have words
        ids = np.full(1 + max(of, default=0), -1, dtype=np.int64)
        ids[list(of)] = list(of.values())
        return ids

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        return [self._encode_array(text) for text in texts]

    def _encode_array(self, text: str) -> Ids:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        if codes.max(initial=0) >= len(self._ids_by_code) or (ids := self._ids_by_code[codes]).min(initial=0) < 0:
            raise ValueError("the text has characters that the vocabulary lacks")
        return np.asarray(ids, dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        unknown = "\N{REPLACEMENT CHARACTER}"
        return "".join(self.characters[token] if 0 <= token < self.vocab_size else unknown for token in ids)

    def token_bytes(self, token: int) -> bytes:
        return self.characters[token].encode("utf-8", errors="replace") if 0 <= token < self.vocab_size else b""


# GPT-2's split into words (openai/gpt-2, src/encoder.py) and the file of its merges, as tiktoken names and checks it.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT2_URL = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"
_GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
GPT2_FILE = "r50k_base.tiktoken"
_END_OF_TEXT = "<|endoftext|>"


class Gpt2Tokenizer:
    """GPT-2's byte pairs. Decoding needs only the ranks file, encoding also tiktoken."""

    name = "gpt2"
    vocab_size = 50257
    end_of_text: int | None = 50256

    def __init__(self, ranks: bytes) -> None:
        if hashlib.sha256(ranks).hexdigest() != _GPT2_SHA256:
            raise ValueError("not GPT-2's ranks")
        self.ranks = ranks
        pairs = [line.split() for line in ranks.splitlines() if line]
        self._ranks = {base64.b64decode(text): int(rank) for text, rank in pairs}
        self._bytes = {rank: text for text, rank in self._ranks.items()}

    @cached_property
    def _encoding(self) -> Any:
        tiktoken = extra("tiktoken", purpose="reading text with GPT-2's tokenizer")
        return tiktoken.Encoding(
            "gpt2",
            pat_str=_GPT2_WORDS,
            mergeable_ranks=self._ranks,
            special_tokens={_END_OF_TEXT: self.end_of_text},
            explicit_n_vocab=self.vocab_size,
        )

    def encode(self, text: str) -> list[int]:
        return list(self._encoding.encode_ordinary(text))

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """One call for all texts, with the end of text between them: a call costs as much as a few words."""
        if not texts or any(_END_OF_TEXT in text for text in texts):  # inside a text it is only text
            return [self._encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]
        ids = self._encoding.encode_to_numpy(_END_OF_TEXT.join(texts), allowed_special={_END_OF_TEXT})
        ends = [*np.flatnonzero(ids == self.end_of_text).tolist(), len(ids)]
        return [ids[first:end] for first, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._bytes.get(token, b"")


def gpt2_tokenizer(environ: Mapping[str, str]) -> Gpt2Tokenizer | None:
    """GPT-2's tokenizer from onecard's home or tiktoken's cache; None if neither has it. Never downloads."""
    cache = environ.get("TIKTOKEN_CACHE_DIR") or environ.get("DATA_GYM_CACHE_DIR")
    cached = Path(cache or Path(tempfile.gettempdir()) / "data-gym-cache")
    name = hashlib.sha1(_GPT2_URL.encode(), usedforsecurity=False).hexdigest()
    for path in (*(home / GPT2_FILE for home in homes(environ)), cached / name):
        try:
            return Gpt2Tokenizer(read_file(path, most_bytes=MOST_BYTES))
        except (OSError, ValueError) as problem:
            unless_machine_failed(problem, None)
    return None


def new_text(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The tokens that start a new text with this vocabulary: an end of text, else a new line, else any token."""
    end = tokenizer.end_of_text
    if end is not None and end < vocab_size:
        return [end]
    try:
        return tokenizer.encode("\n") or [0]
    except OnecardError:  # the data has no new line, or the library for encoding is not installed
        return [0]


def bytes_per_token(tokens: Tokens, tokenizer: Tokenizer) -> float | None:
    """Mean UTF-8 bytes per token in this data, for bits per byte; None for data without text."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for _, chunk in tokens.chunks():
        known = chunk[chunk < tokenizer.vocab_size]
        counts += np.bincount(known, minlength=tokenizer.vocab_size)
    lengths = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    total, size = int(counts.sum()), int(counts @ lengths)
    return size / total if size else None


def agree(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers give the ids they share the same text, except for a few such as an end of text."""
    both = min(one.vocab_size, other.vocab_size)
    return sum(one.token_bytes(token) != other.token_bytes(token) for token in range(both)) <= 0.01 * both
