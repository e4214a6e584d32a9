"""Samples of prepared data: a few documents of each split, as text that is safe to print."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onecard.data.dataset import Dataset
from onecard.data.tokens import Tokens
from onecard.visible import visible

_LOOK_TOKENS = 4096  # how far after a position to look for the next document


@dataclass(frozen=True)
class Sample:
    """The beginning of a document, or of the text at a position."""

    split: str
    position: int
    text: str


def samples(dataset: Dataset, *, count: int, length: int = 60) -> tuple[Sample, ...]:
    """Up to `count` samples of each split, evenly spread, of `length` tokens; empty without a tokenizer."""
    if dataset.tokenizer is None:
        return ()
    end = dataset.tokenizer.end_of_text
    found = {}
    for split, tokens in (("train", dataset.train), ("val", dataset.val)):
        for number in range(count):
            position = _document_from(tokens, len(tokens) * number // count, end)
            ids = _first_document(tokens.read(position, length).tolist(), end)
            if ids:
                found[split, position] = Sample(split, position, visible(dataset.tokenizer.decode(ids)))
    return tuple(found.values())


def _first_document(ids: list[int], end_of_text: int | None) -> list[int]:
    """The tokens up to an end of text; one at the very beginning, as in llm.c's shards, is skipped."""
    first = 1 if ids and ids[0] == end_of_text else 0
    ends = [index for index, token in enumerate(ids) if token == end_of_text and index > first]
    return ids[first : ends[0]] if ends else ids[first:]


def _document_from(tokens: Tokens, position: int, end_of_text: int | None) -> int:
    """Where the next document begins; the position itself if it is 0, or if no document begins soon."""
    if position == 0 or end_of_text is None:
        return position
    ends = np.flatnonzero(tokens.read(position, _LOOK_TOKENS) == end_of_text)
    return position + int(ends[0]) + 1 if len(ends) else position
