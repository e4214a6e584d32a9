"""Converts a record to one JSON object (a line of records.jsonl) and back.

Reading is tolerant, so that an old version can show a new run: an unknown kind becomes an `Unknown`, an unknown field
is kept in `more`, and both are written back unchanged.

Writing is strict JSON: a number that is not finite is written as the text "NaN", "Infinity" or "-Infinity" (spelled as
in protobuf's JSON mapping and JavaScript's `Number`). This distinguishes a loss of NaN from an unknown loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from onecard.findings import Finding
from onecard.runs.records import KINDS, FindingRecord, Record, Unknown
from onecard.untrusted_json import (
    BadJson,
    field,
    list_of,
    mapping,
    mapping_of,
    number,
    optional,
    parsed,
    scalar,
    seconds,
    text,
    whole,
    yes_or_no,
)

Reader = Callable[[object], object]  # the value of a field from its JSON value; BadJson if the type is wrong


class NotARecord(BadJson):
    """JSON that is not a record: it has no kind, lacks a field, or has a field of another type."""


def to_json(record: Record) -> dict[str, object]:
    """The record as a JSON object with "kind" first; all its numbers are finite."""
    known = {} if isinstance(record, Unknown) else {name: getattr(record, name) for name in _READERS[record.kind]}
    if isinstance(record, FindingRecord):
        known["finding"] = record.finding.as_json()
    names = dict.fromkeys(("kind", *known, *record.more))  # known fields come first and are never overwritten
    values = {**record.more, **known, "kind": record.kind}
    return {name: _strict(values[name]) for name in names}


def to_line(record: Record) -> bytes:
    """The record as one line of records.jsonl, with newline. It is ASCII, so a cut never splits a character."""
    return json.dumps(to_json(record), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def from_json(value: object) -> Record:
    """The record in a JSON object; NotARecord if it is not a record. Missing optional fields are None."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str):
        raise NotARecord("no kind")
    readers = _READERS.get(kind, {})
    more = {name: item for name, item in value.items() if name != "kind" and name not in readers}
    if kind not in KINDS:
        return Unknown(kind=kind, more=more)
    try:
        known = {name: field(value, name, read) for name, read in readers.items()}
    except BadJson as problem:
        raise NotARecord(f"{kind}: {problem}") from None
    record: Record = KINDS[kind](**known, more=more)
    return record


def from_line(line: bytes) -> Record:
    """The record in one line; NotARecord if the line is cut off, damaged, or something else."""
    try:
        return from_json(parsed(line))
    except BadJson as problem:
        raise NotARecord(str(problem)) from None


def holds_record(line: bytes) -> bool:
    """Whether a line is a record of a kind we know."""
    try:
        return not isinstance(from_line(line), Unknown)
    except NotARecord:
        return False


def _strict(value: object) -> object:
    """The value with text in place of NaN and infinity, and with text keys."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: object) -> float:
    """A number, also one that is not finite."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    return value if isinstance(value, float) and not math.isfinite(value) else number(value)


def _number_or_nan(value: object) -> float:
    """The number; a null in place of a required number is another writer's NaN."""
    return math.nan if value is None else _number(value)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(list_of(text)(value))


def _finding(value: object) -> object:
    """The Finding in its JSON. Fields that a later version adds are dropped."""
    value = mapping(value)
    names = ("rule", "severity", "sure", "what", "why", "fix")
    texts: dict[str, Any] = {name: field(value, name, text) for name in names}
    lines = field({"seen": [], **value}, "seen", list_of(text))
    patch = field({"patch": {}, **value}, "patch", mapping_of(scalar))
    return Finding(**texts, seen=tuple(lines), patch=patch)


_BY_TYPE: dict[Any, Reader] = {int: whole, float: _number_or_nan, str: text, bool: yes_or_no, Finding: _finding}
_BY_TYPE[tuple[str, ...]] = _texts


def _reader(hint: Any) -> Reader:
    """The reader for a field of this type. Any text is accepted for a Literal: a later version may have more values."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (_reader(part) for part in get_args(hint) if part is not NoneType)
        return optional(_number if inner is _number_or_nan else inner)
    if get_origin(hint) is Literal:
        return text
    return _BY_TYPE.get(hint, mapping_of(scalar))  # settings, versions


def _readers(record: type[Any]) -> dict[str, Reader]:
    """The reader of each field of a record type, in order."""
    hints = get_type_hints(record)
    return {item.name: _field_reader(item.name, hints[item.name]) for item in fields(record) if item.name != "more"}


def _field_reader(name: str, hint: Any) -> Reader:
    """The reader of a field: a name that ends in seconds is that of a duration."""
    return optional(seconds) if name.endswith("seconds") else _reader(hint)


_READERS = {kind: _readers(record) for kind, record in KINDS.items()}
