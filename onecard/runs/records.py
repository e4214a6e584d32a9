"""What happened in a run, one record at a time: typed values here, one JSON object a line in records.jsonl.

Reading is forgiving, so that an old reader shows a new run: a kind it does not know becomes an `Unknown`, a field it
does not know is kept in `more`, and both are written again as they were. `None` means "not known".

JSON stays strict: a number that is not finite is written as the text "NaN", "Infinity" or "-Infinity" (as protobuf's
JSON mapping and JavaScript's `Number` spell it), which tells a loss of NaN apart from an unknown loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from onecard.findings import Finding

EndReason = Literal["finished", "interrupted", "max_hours", "out-of-memory", "diverged", "error"]
OomPlace = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Training begins after `step` updates. In a file that goes on, it takes back what was recorded beyond `step`."""

    kind: ClassVar[str] = "start"
    step: int
    config: Mapping[str, object]
    versions: Mapping[str, object]  # of onecard, torch, python
    device: str
    card: str | None
    predicted_process_bytes: int | None  # the plan's figure, to hold against what is measured
    resumed_from: str | None  # the checkpoint; None for a run from the beginning
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One update: `step` is the number of updates done, `tokens` all that were read so far."""

    kind: ClassVar[str] = "step"
    step: int
    tokens: int | None
    loss: float  # mean over all micro-batches, in nats per token
    lr: float | None
    grad_norm: float | None  # before clipping
    seconds: float | None
    elapsed_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None  # share of the card's dense peak, 0 to 1
    allocated_bytes: int | None
    reserved_bytes: int | None  # the highest so far
    data_wait_seconds: float | None  # of `seconds`, spent waiting for data
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eval:
    """Losses in nats per token on fixed windows of both splits, with their standard errors."""

    kind: ClassVar[str] = "eval"
    step: int
    tokens: int | None
    train_loss: float | None
    val_loss: float | None
    train_loss_error: float | None
    val_loss_error: float | None
    block_size: int | None  # losses at different lengths do not compare
    tokens_read: int | None
    seconds: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    bits_per_byte: float | None  # of val_loss, where the tokenizer is known
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint is complete on disk; `path` is relative to the run folder."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    tokens: int | None
    path: str
    seconds: float | None
    reason: str
    best: bool
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Oom:
    """The card ran out of memory at `step`; the sizes after are those of the next attempt, None for giving up."""

    kind: ClassVar[str] = "oom"
    step: int
    where: OomPlace
    batch_size_before: int
    batch_size_after: int | None
    accumulation_before: int | None  # gradient_accumulation_steps; None in evaluation
    accumulation_after: int | None
    message: str
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingRecord:
    """The doctor, watching, found something at `step`."""

    kind: ClassVar[str] = "finding"
    step: int
    finding: Finding
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Training stopped; a run without one was killed, or still runs."""

    kind: ClassVar[str] = "end"
    step: int
    tokens: int | None
    reason: EndReason
    best_val_loss: float | None
    seconds: float | None
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A record of a kind this version does not know, kept as it is."""

    kind: str
    more: Mapping[str, object]

    @property
    def step(self) -> int | None:
        step = self.more.get("step")
        return step if type(step) is int else None


Record = Start | Step | Eval | Checkpoint | Oom | FindingRecord | End | Unknown
KINDS: dict[str, type[Any]] = {
    record.kind: record for record in (Start, Step, Eval, Checkpoint, Oom, FindingRecord, End)
}


class NotARecord(ValueError):
    """JSON that is no record: no kind, a field missing, or of another type."""


def to_json(record: Record) -> dict[str, object]:
    """The record as a JSON object with "kind" first; no number in it is NaN or infinite."""
    known = {} if isinstance(record, Unknown) else {name: getattr(record, name) for name in _READERS[record.kind]}
    if isinstance(record, FindingRecord):
        known["finding"] = record.finding.as_json()
    names = dict.fromkeys(("kind", *known, *record.more))  # known fields first, and never overwritten
    values = {**record.more, **known, "kind": record.kind}
    return {name: _strict(values[name]) for name in names}


def to_line(record: Record) -> bytes:
    """The record as one line of records.jsonl, newline included: ASCII, so a cut never splits a character."""
    return json.dumps(to_json(record), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def from_json(value: object) -> Record:
    """The record in a JSON object; NotARecord if it is none. What is absent and may be unknown is None."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str):
        raise NotARecord("no kind")
    readers = _READERS.get(kind)
    if readers is None:
        return Unknown(kind=kind, more={name: item for name, item in value.items() if name != "kind"})
    try:
        known = {name: read(value.get(name)) for name, read in readers.items()}
    except NotARecord as problem:
        raise NotARecord(f"{kind}: {problem}") from None
    more = {name: item for name, item in value.items() if name not in readers and name != "kind"}
    record: Record = KINDS[kind](**known, more=more)
    return record


def from_line(line: bytes) -> Record:
    """The record in one line; NotARecord if it is torn, damaged, or something else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, no UTF-8, or a number of a million digits
        raise NotARecord("no JSON") from problem
    return from_json(value)


@dataclass(frozen=True, slots=True)
class History:
    """All records of a file in the order they were written, and how many lines could not be read."""

    records: tuple[Record, ...]
    damaged_lines: int = 0


def read_lines(lines: Iterable[bytes]) -> History:
    """The records in lines of bytes. A crash can tear a line, so unreadable lines are counted and passed over."""
    records: list[Record] = []
    damaged = 0
    for line in lines:
        if line.isspace() or not line:
            continue
        try:
            records.append(from_line(line))
        except NotARecord:
            damaged += 1
    return History(tuple(records), damaged)


def each_step_once(history: Iterable[Record]) -> tuple[Record, ...]:
    """The records that count: without what a resume took back and did again.

    The file is append-only, so the past stays in it. A run that resumes at step k writes a `start` with step k: records
    of later steps before it are of updates that were lost, and an `end` before it was not the end. A `start` at step 0
    without a checkpoint begins anew. Should a start be lost, a step number that falls says the same. Of evaluations of
    one step and length the last counts.
    """
    kept: list[Record] = []
    last_step = math.inf  # lowest number of a start that follows
    next_step = math.inf  # lowest number of a step that follows
    continued = False
    evaluated: set[tuple[int, int | None]] = set()
    for record in reversed(tuple(history)):
        step = record.step
        if isinstance(record, End) and continued:
            continue
        if step is not None and (step > last_step or step > next_step):
            continue
        if isinstance(record, Step):
            if step == next_step:
                continue
            next_step = record.step
        elif isinstance(record, Eval):
            if (record.step, record.block_size) in evaluated:
                continue
            evaluated.add((record.step, record.block_size))
        kept.append(record)
        if isinstance(record, Start):
            continued = True
            last_step = min(last_step, record.step)
            if record.step == 0 and record.resumed_from is None:
                break
    return tuple(reversed(kept))


def _strict(value: object) -> object:
    """The value with texts for numbers that JSON does not have, and keys that are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _whole(value: object) -> object:
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise NotARecord(f"{value!r:.40} is not a whole number")


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: object) -> object:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < 2**1023:
        return float(value)
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise NotARecord(f"{value!r:.40} is not a number")


def _number_or_nan(value: object) -> object:
    """Where a number must be, null can only be another writer's NaN."""
    return math.nan if value is None else _number(value)


def _text(value: object) -> object:
    if isinstance(value, str):
        return value
    raise NotARecord(f"{value!r:.40} is not text")


def _yes_or_no(value: object) -> object:
    if isinstance(value, bool):
        return value
    raise NotARecord(f"{value!r:.40} is not true or false")


def _object(value: object) -> object:
    if isinstance(value, dict):
        return value
    raise NotARecord(f"{value!r:.40} is not an object")


def _finding(value: object) -> object:
    """The Finding in its JSON; what a later version adds to findings is not kept."""
    if not isinstance(value, dict):
        raise NotARecord("no finding")
    names = ("rule", "severity", "sure", "what", "why", "fix")
    texts: dict[str, Any] = {name: _text(value.get(name)) for name in names}
    seen, patch = value.get("seen", []), value.get("patch", {})
    if not isinstance(seen, list) or not all(isinstance(line, str) for line in seen) or not isinstance(patch, dict):
        raise NotARecord("no finding")
    return Finding(**texts, seen=tuple(seen), patch=patch)


def _reader(hint: Any) -> Callable[[object], object]:
    """How a field of this type is read. Texts are not held to their Literal: a later version may have more words."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (_reader(part) for part in get_args(hint) if part is not NoneType)
        known = _number if inner is _number_or_nan else inner
        return lambda value: None if value is None else known(value)
    if get_origin(hint) is Literal:
        return _text
    plain: dict[Any, Callable[[object], object]] = {
        int: _whole,
        float: _number_or_nan,
        str: _text,
        bool: _yes_or_no,
        Finding: _finding,
    }
    return plain.get(hint, _object)


_READERS: dict[str, dict[str, Callable[[object], object]]] = {
    kind: {item.name: _reader(get_type_hints(record)[item.name]) for item in fields(record) if item.name != "more"}
    for kind, record in KINDS.items()
}
