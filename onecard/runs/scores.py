"""evals.jsonl in a run folder: what `onecard eval` measured of its checkpoints, an object a line, only appended.

"kind" says what a line is: "text", with the fields of TextScore, or "task", with those of TaskScore. A line that was
cut off by a crash is passed over, as are lines of a kind that this version does not know.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from string import hexdigits
from typing import Any

from onecard.errors import unless_machine_failed
from onecard.files import writing
from onecard.opening import open_file, pieces
from onecard.untrusted_json import (
    BadJson,
    count,
    field,
    list_of,
    mapping,
    mapping_of,
    number,
    optional,
    parsed,
    positive,
    text,
)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """How well a checkpoint answers the questions of one task of lm-eval."""

    step: int
    task: str
    metric: str  # the one to look at: the key of `metrics` that has the best known meaning
    metrics: dict[str, tuple[float, float | None]]  # each metric with its standard error over the questions, if known
    chance: float | None  # of `metric`: what guessing gets; None where nobody knows
    questions: int
    questions_sha256: str  # of the questions with their answers: equal only for the same ones
    limit: int | None  # --limit: of a task's questions (of each part, for a group of tasks) only the first
    version: str  # of the task, in its own words
    harness: str  # the program that made the questions: lm-eval and its version
    weights: str | None = None  # checksum of the checkpoint's weights
    right: str = ""  # whether each question was answered right by `metric`: bits, first question first, as hex

    @property
    def value(self) -> float:
        return self.metrics[self.metric][0]

    @property
    def error(self) -> float | None:
        return self.metrics[self.metric][1]

    @property
    def answers(self) -> tuple[int, ...]:
        """1 for each question that was answered right, 0 for the others; empty where it was not kept."""
        bits = "".join(f"{int(digit, 16):04b}" for digit in self.right)[: self.questions]
        return tuple(map(int, bits)) if len(bits) == self.questions else ()


def packed(answers: Sequence[float]) -> str:
    """The answers as TaskScore.right; empty where some are neither right nor wrong."""
    if any(answer not in (0, 1) for answer in answers):
        return ""
    bits = "".join("1" if answer else "0" for answer in answers)
    bits += "0" * (-len(bits) % 4)
    return "".join(f"{int(bits[place : place + 4], 2):x}" for place in range(0, len(bits), 4))


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
    for said in _lines(run):
        with suppress(BadJson):
            if said.get("kind") == "text":
                score = _text_score(said)
                found.pop(key := (score.step, score.text_sha256, score.context), None)
                found[key] = score
    return tuple(found.values())


def read_task_scores(run: Path) -> tuple[TaskScore, ...]:
    """The scores of a run in tasks, the last of each checkpoint, task and limit; empty where it has none."""
    found: dict[tuple[object, ...], TaskScore] = {}
    for said in _lines(run):
        with suppress(BadJson):
            if said.get("kind") == "task":
                score = _task_score(said)
                found.pop(key := (score.step, score.task, score.limit), None)
                found[key] = score
    return tuple(found.values())


def _lines(run: Path) -> Iterator[Mapping[str, object]]:
    try:
        with open_file(run / SCORES) as file:
            for line in pieces(file, longest_bytes=_LONGEST_BYTES):
                with suppress(BadJson):
                    yield mapping(parsed(line))
    except OSError as problem:
        unless_machine_failed(problem, None)


def append_score(run: Path, score: TextScore | TaskScore) -> None:
    """Add a score with a single write. It survives a power cut."""
    said = {"kind": "task" if isinstance(score, TaskScore) else "text", **asdict(score)}
    line = json.dumps(said, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
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


def _text_score(said: Mapping[str, object]) -> TextScore:
    found = _fields(said, _READERS, _NEEDED)
    found.setdefault("error", None)
    for name in ("document_bytes", "document_nats"):
        found[name] = tuple(found.get(name, ()))
    if len(found["document_bytes"]) != len(found["document_nats"]):
        raise BadJson("its documents do not match")
    return TextScore(**found)


def _task_score(said: Mapping[str, object]) -> TaskScore:
    score = TaskScore(**_fields(said, _TASK_READERS, _TASK_NEEDED))
    if score.metric not in score.metrics:
        raise BadJson(f"has no {score.metric}")
    if not set(score.right) <= set(hexdigits):
        raise BadJson("right is not hex")
    return score


def _fields(
    said: Mapping[str, object], readers: Mapping[str, Callable[[object], Any]], needed: Set[str]
) -> dict[str, Any]:
    if missing := needed - said.keys():
        raise BadJson(f"has no {min(missing)}")
    return {name: field(said, name, read) for name, read in readers.items() if name in said}


def _value_and_error(value: object) -> tuple[float, float | None]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadJson("is not a value and its error")
    return number(value[0]), optional(number)(value[1])


_READERS: dict[str, Callable[[object], Any]] = {
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
_TASK_READERS: dict[str, Callable[[object], Any]] = {
    "step": count,
    "task": text,
    "metric": text,
    "metrics": mapping_of(_value_and_error),
    "chance": optional(number),
    "questions": positive,
    "questions_sha256": text,
    "limit": optional(positive),
    "version": text,
    "harness": text,
    "weights": optional(text),
    "right": text,
}
_TASK_NEEDED = _TASK_READERS.keys() - {"weights", "right"}
