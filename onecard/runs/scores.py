"""evals.jsonl in a run folder: what `onecard eval` measured of its checkpoints, an object a line, only appended.

A line that was cut off by a crash is passed over, as are lines of a kind that this version does not know.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard.files import writing
from onecard.opening import open_file, pieces
from onecard.untrusted_json import BadJson, count, field, list_of, mapping, number, optional, parsed, positive, text

SCORES = "evals.jsonl"
MOST_DOCUMENTS = 4096  # of which each is kept; of more only the sums
_LONGEST_BYTES = 2**20  # of a line


@dataclass(frozen=True, kw_only=True, slots=True)
class TextScore:
    """How well a checkpoint predicts a text. Each document is scored by itself."""

    step: int
    text: str  # the name of the file
    text_sha256: str  # of the documents that were scored: equal only for the same text
    context: int  # tokens
    documents: int
    bytes: int
    tokens: int
    nats: float
    error: float | None  # standard error of bits_per_byte, over the documents; None for one document
    token_error: float | None = None  # the same of nats_per_token
    document_bytes: tuple[int, ...] = ()  # of each document, in order; empty for more than MOST_DOCUMENTS
    document_nats: tuple[float, ...] = ()

    @property
    def bits_per_byte(self) -> float:
        return self.nats / (math.log(2) * self.bytes)

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens


def ratio_error(sums: list[float], sizes: list[int]) -> float | None:
    """The standard error of sum(sums) / sum(sizes), each pair a draw; None for a single one."""
    total, drawn = sum(sizes), len(sizes)
    if drawn < 2 or not total:
        return None
    ratio = sum(sums) / total
    squares = sum((one - ratio * size) ** 2 for one, size in zip(sums, sizes, strict=True))
    return math.sqrt(squares * drawn / (drawn - 1)) / total


def lead(one: TextScore, other: TextScore) -> tuple[float, float | None]:
    """(how many bits per byte `one` is below `other`, the standard error of that), both scores of the same text.

    Documents that are hard for one model are hard for the other: differences of each document are much more exact than
    the two scores.
    """
    difference = other.bits_per_byte - one.bits_per_byte
    if one.document_nats and len(one.document_nats) == len(other.document_nats):
        nats = [b - a for a, b in zip(one.document_nats, other.document_nats, strict=True)]
        error = ratio_error(nats, list(one.document_bytes))
        return difference, None if error is None else error / math.log(2)
    if one.error is None or other.error is None:
        return difference, None
    return difference, math.hypot(one.error, other.error)


def read_scores(run: Path) -> tuple[TextScore, ...]:
    """The scores of a run, the last of each checkpoint and text; empty where it has none."""
    found: dict[tuple[object, ...], TextScore] = {}
    try:
        with open_file(run / SCORES) as file:
            for line in pieces(file, longest_bytes=_LONGEST_BYTES):
                try:
                    score = _score(mapping(parsed(line)))
                except BadJson:
                    continue
                if score:
                    found.pop(key := (score.step, score.text_sha256, score.context), None)
                    found[key] = score
    except OSError:
        return ()
    return tuple(found.values())


def append_score(run: Path, score: TextScore) -> None:
    """Add a score with a single write. It survives a power cut."""
    line = json.dumps({"kind": "text", **asdict(score)}, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
    place = run / SCORES
    with writing(place):
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last line was cut off: this one must not be lost with it
            written = os.write(descriptor, line)
            while written < len(line):  # a disk that fills up writes a part first; the next write fails
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _score(said: Mapping[str, object]) -> TextScore | None:
    """The score in a line; None for another kind of line."""
    if said.get("kind") != "text":
        return None
    if missing := _NEEDED - said.keys():
        raise BadJson(f"has no {min(missing)}")
    found: dict[str, Any] = {name: field(said, name, read) for name, read in _READERS.items() if name in said}
    found.setdefault("error", None)
    for name in ("document_bytes", "document_nats"):
        found[name] = tuple(found.get(name, ()))
    if len(found["document_bytes"]) != len(found["document_nats"]):
        raise BadJson("its documents do not match")
    return TextScore(**found)


_READERS = {
    "step": count,
    "text": text,
    "text_sha256": text,
    "context": positive,
    "documents": positive,
    "bytes": positive,
    "tokens": positive,
    "nats": number,
    "error": optional(number),
    "token_error": optional(number),
    "document_bytes": list_of(positive),
    "document_nats": list_of(number),
}
_NEEDED = _READERS.keys() - {"error", "token_error", "document_bytes", "document_nats"}
