"""The tokenizer of a data folder: named in its meta.json and kept beside its tokens, so that the folder is complete.

{"tokenizer": "gpt2", "vocab_size": 50257}                  and r50k_base.tiktoken
{"tokenizer": "tokenizer.json", "vocab_size": 8192}         and tokenizer.json
{"tokenizer": "bytes", "vocab_size": 256}
{"tokenizer": "characters", "vocab_size": 65, "characters": ["\\n", " ", …]}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onecard.config.names import nearest
from onecard.data.home import cache_home
from onecard.data.tokenizer_json import JsonTokenizer
from onecard.data.tokenizers import (
    GPT2_FILE,
    MOST_BYTES,
    ByteTokenizer,
    CharacterTokenizer,
    Gpt2Tokenizer,
    Tokenizer,
    gpt2_tokenizer,
)
from onecard.errors import ConfigError
from onecard.files import write_atomically
from onecard.opening import cannot_read, read_file

JSON_FILE = "tokenizer.json"
LEARNED = ("characters", "bpe")  # learned from the data; the others exist before it
_GPT2_NAMES = ("gpt2", "openai-community/gpt2")  # as the hub calls it
NAMES = ("gpt2", "bytes", *LEARNED)


def find_tokenizer(name: str, *, ranks: Path | None, environ: Mapping[str, str]) -> Tokenizer:
    """The tokenizer a user named: gpt2, bytes, or the path of a tokenizer.json or of the folder it is in."""
    if name == "bytes":
        return ByteTokenizer()
    if name == "gpt2":
        return _given_ranks(ranks) if ranks else _gpt2_here(environ)
    path = Path(name, JSON_FILE) if Path(name).is_dir() else Path(name)
    try:
        return JsonTokenizer(read_file(path, most_bytes=MOST_BYTES).decode())
    except (OSError, ValueError) as problem:
        raise cannot_read(path, problem) or ConfigError(
            f"there is no tokenizer {name}",
            why=f"it is not one of {', '.join(NAMES)}, and {path} cannot be used: "
            f"{getattr(problem, 'strerror', None) or problem}",
            fix=f"--tokenizer={nearest(name, NAMES) or NAMES[0]}, or the path of a Hugging Face tokenizer.json",
            name="no-such-tokenizer",
        ) from problem


def keep_tokenizer(tokenizer: Tokenizer, folder: Path) -> dict[str, object]:
    """Write what the tokenizer needs beside the tokens; returns its part of meta.json."""
    if isinstance(tokenizer, Gpt2Tokenizer):
        write_atomically(folder / GPT2_FILE, tokenizer.ranks)
    if isinstance(tokenizer, JsonTokenizer):
        write_atomically(folder / JSON_FILE, tokenizer.text.encode())
    said: dict[str, object] = {"tokenizer": tokenizer.name, "vocab_size": tokenizer.vocab_size}
    return said | ({"characters": tokenizer.characters} if isinstance(tokenizer, CharacterTokenizer) else {})


def kept_tokenizer(folder: Path, said: Mapping[str, Any], *, environ: Mapping[str, str]) -> Tokenizer | None:
    """The tokenizer that a folder's meta.json names; None if it names none, or it is not here."""
    characters = said.get("characters")
    match said.get("tokenizer"):
        case "bytes":
            return ByteTokenizer()
        case "gpt2":
            try:
                return Gpt2Tokenizer(read_file(folder / GPT2_FILE, most_bytes=MOST_BYTES))
            except (OSError, ValueError):
                return gpt2_tokenizer(environ)
        case "tokenizer.json":
            try:
                return JsonTokenizer(read_file(folder / JSON_FILE, most_bytes=MOST_BYTES).decode())
            except (OSError, ValueError) as problem:
                if unread := cannot_read(folder / JSON_FILE, problem):
                    raise unread from problem
                return None
    if isinstance(characters, list | tuple) and characters and all(isinstance(each, str) for each in characters):
        return CharacterTokenizer(characters)
    return None


def tokenizer_named(name: str, folder: Path, *, environ: Mapping[str, str]) -> tuple[Tokenizer | None, int | None]:
    """The tokenizer of a folder without meta.json, and its size: tokenizer.json, else GPT-2's if that is the name.

    A name is never looked up elsewhere: data must not choose which files are read. GPT-2's size is known without it.
    """
    if (folder / JSON_FILE).is_file():
        tokenizer = kept_tokenizer(folder, {"tokenizer": JSON_FILE}, environ=environ)
        return tokenizer, tokenizer.vocab_size if tokenizer else None
    if name in _GPT2_NAMES:
        return kept_tokenizer(folder, {"tokenizer": "gpt2"}, environ=environ), Gpt2Tokenizer.vocab_size
    return None, None


def _given_ranks(path: Path) -> Gpt2Tokenizer:
    try:
        return Gpt2Tokenizer(read_file(path, most_bytes=MOST_BYTES))
    except (OSError, ValueError) as problem:
        raise cannot_read(path, problem) or ConfigError(
            f"{path} cannot be used as GPT-2's ranks",
            why=getattr(problem, "strerror", None) or f"{problem}: its sha256 is not that of {GPT2_FILE}",
            fix=f"--ranks {GPT2_FILE}, the file tiktoken downloads for r50k_base",
            name="bad-ranks",
        ) from problem


def _gpt2_here(environ: Mapping[str, str]) -> Gpt2Tokenizer:
    found = gpt2_tokenizer(environ)
    if found is None:
        raise ConfigError(
            f"GPT-2's tokenizer is not on this machine: {GPT2_FILE}",
            why=f"looked in {cache_home(environ)} and in tiktoken's cache; only downloads from the hub bring it",
            fix="python -c \"import tiktoken; tiktoken.get_encoding('r50k_base')\"   (downloads it once; offline: "
            "--ranks FILE, or --tokenizer=bytes)",
            name="no-ranks",
        )
    return found
