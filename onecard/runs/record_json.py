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

Reader = Callable[[object], object]  # the value of a field from its JSON value; NotARecord if the type is wrong


class NotARecord(ValueError):
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
        known = {name: read(value.get(name)) for name, read in readers.items()}
    except NotARecord as problem:
        raise NotARecord(f"{kind}: {problem}") from None
    record: Record = KINDS[kind](**known, more=more)
    return record


def from_line(line: bytes) -> Record:
    """The record in one line; NotARecord if the line is cut off, damaged, or something else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as problem:  # ValueError: not JSON, not UTF-8, or a number of a million digits
        raise NotARecord("not JSON") from problem
    return from_json(value)


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
    """The number; a null in place of a required number is another writer's NaN."""
    return math.nan if value is None else _number(value)


def _instance(of: type, words: str) -> Reader:
    """A reader that accepts values of one type unchanged."""

    def read(value: object) -> object:
        if isinstance(value, of):
            return value
        raise NotARecord(f"{value!r:.40} is not {words}")

    return read


_text, _yes_or_no, _object = _instance(str, "text"), _instance(bool, "true or false"), _instance(dict, "an object")


def _finding(value: object) -> object:
    """The Finding in its JSON. Fields that a later version adds are dropped."""
    if not isinstance(value, dict):
        raise NotARecord("no finding")
    names = ("rule", "severity", "sure", "what", "why", "fix")
    texts: dict[str, Any] = {name: _text(value.get(name)) for name in names}
    seen, patch = value.get("seen", []), value.get("patch", {})
    if not isinstance(seen, list) or not all(isinstance(line, str) for line in seen) or not isinstance(patch, dict):
        raise NotARecord("no finding")
    return Finding(**texts, seen=tuple(seen), patch=patch)


_BY_TYPE: dict[Any, Reader] = {int: _whole, float: _number_or_nan, str: _text, bool: _yes_or_no, Finding: _finding}


def _reader(hint: Any) -> Reader:
    """The reader for a field of this type. Any text is accepted for a Literal: a later version may have more values."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (_reader(part) for part in get_args(hint) if part is not NoneType)
        known = _number if inner is _number_or_nan else inner
        return lambda value: None if value is None else known(value)
    if get_origin(hint) is Literal:
        return _text
    return _BY_TYPE.get(hint, _object)


def _readers(record: type[Any]) -> dict[str, Reader]:
    """The reader of each field of a record type, in order."""
    hints = get_type_hints(record)
    return {item.name: _reader(hints[item.name]) for item in fields(record) if item.name != "more"}


_READERS = {kind: _readers(record) for kind, record in KINDS.items()}
