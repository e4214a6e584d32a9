"""Tokenizers made from the documents themselves: their characters, or byte pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from onecard.data.document import Bad
from onecard.data.documents import read_documents
from onecard.data.encode import content_hash, document_text
from onecard.data.sources import SourceFile
from onecard.data.tokenizer_json import JsonTokenizer, train_bpe
from onecard.data.tokenizers import CharacterTokenizer, Tokenizer
from onecard.errors import ConfigError

BPE_VOCABULARY = 8192
_BPE_CHARACTERS = 2**26  # that byte pairs are learned from: enough for their counts, and constant memory


def learn_tokenizer(name: str, texts: Iterator[str], *, vocab_size: int | None) -> Tokenizer:
    """The tokenizer "characters" or "bpe" of these texts."""
    if name == "characters":
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        if not characters:
            raise _nothing()
        return CharacterTokenizer(sorted(characters))
    first = list(islice(texts, 1))
    if not first:
        raise _nothing()
    sample = _up_to(_BPE_CHARACTERS, chain(first, texts))
    return JsonTokenizer(train_bpe(sample, vocab_size=vocab_size or BPE_VOCABULARY))


def good_texts(files: Iterator[SourceFile], *, column: str, characters: int | None) -> Iterator[str]:
    """The texts of the documents that will be kept, up to so many characters."""
    total = 0
    for words, _ in _good(files, column=column):
        yield words
        total += len(words)
        if characters is not None and total >= characters:
            return


def good_hashes(files: Iterable[SourceFile], *, column: str) -> Iterator[int]:
    """The hashes of the documents that will be kept."""
    return (content_hash(text) for _, text in _good(files, column=column))


def _good(files: Iterable[SourceFile], *, column: str) -> Iterator[tuple[str, bytes]]:
    """Each document that will be kept, as text and as UTF-8."""
    for file in files:
        for read in read_documents(file, column=column):
            if isinstance(read.document, Bad):
                continue
            found = document_text(read.document, column=column if read.is_json else None)
            if isinstance(found, tuple):
                yield found


def _up_to(characters: int, texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def _nothing() -> ConfigError:
    return ConfigError(
        "there is no text to learn a tokenizer from",
        why="the source has no document that can be used",
        fix="look at the source, or name the column of its text with --column NAME",
        name="no-documents",
    )
