"""Tokenizers learned from the documents: their characters, or byte pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from onecard.data.document import Bad, Read
from onecard.data.documents import read_documents
from onecard.data.encode import Lacking, content_hash, document_text
from onecard.data.sources import SourceFile
from onecard.data.tokenizer_json import JsonTokenizer, train_bpe
from onecard.data.tokenizers import CharacterTokenizer, Tokenizer

BPE_VOCABULARY = 8192
OnBad = Callable[[SourceFile, Read, Bad | Lacking], None]
_BPE_CHARACTERS = 2**26  # to learn byte pairs from: enough for good counts, in constant memory


class NothingToLearn(Exception):
    """There is no document that can be used."""


def _nobody(file: SourceFile, read: Read, why: Bad | Lacking) -> None:
    """A listener that does nothing."""


def learn_tokenizer(name: str, texts: Iterator[str], *, vocab_size: int | None) -> Tokenizer:
    """The tokenizer "characters" or "bpe" of these texts."""
    if name == "characters":
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        if not characters:
            raise NothingToLearn
        return CharacterTokenizer(sorted(characters))
    first = list(islice(texts, 1))
    if not first:
        raise NothingToLearn
    sample = _up_to(_BPE_CHARACTERS, chain(first, texts))
    return JsonTokenizer(train_bpe(sample, vocab_size=vocab_size or BPE_VOCABULARY))


def good_texts(
    files: Iterator[SourceFile], *, column: str, characters: int | None, on_bad: OnBad = _nobody
) -> Iterator[str]:
    """The texts of the documents that will be kept, up to this many characters; `on_bad` gets the others."""
    total = 0
    for words, _ in _good(files, column=column, on_bad=on_bad):
        yield words
        total += len(words)
        if characters is not None and total >= characters:
            return


def good_hashes(files: Iterable[SourceFile], *, column: str) -> Iterator[int]:
    """The hashes of the documents that will be kept."""
    return (content_hash(text) for _, text in _good(files, column=column))


def _good(files: Iterable[SourceFile], *, column: str, on_bad: OnBad = _nobody) -> Iterator[tuple[str, bytes]]:
    """Each document that will be kept, as text and as UTF-8."""
    for file in files:
        for read in read_documents(file, column=column):
            found: tuple[str, bytes] | Bad | Lacking
            if isinstance(read.document, Bad):
                found = read.document
            else:
                found = document_text(read.document, column=column if read.is_json else None)
            if isinstance(found, tuple):
                yield found
            else:
                on_bad(file, read, found)


def _up_to(characters: int, texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return
