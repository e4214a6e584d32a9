"""A record as one JSON object, a line of records.jsonl, and back.

Reading is forgiving, so that an old reader shows a new run: a kind it does not know becomes an `Unknown`, a field it
does not know is kept in `more`, and both are written again as they were.

JSON stays strict: a number that is not finite is written as the text "NaN", "Infinity" or "-Infinity" (as protobuf's
JSON mapping and JavaScript's `Number` spell it), which tells a loss of NaN apart from an unknown loss.
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

Reader = Callable[[object], object]  # of a field: its value from what JSON holds; NotARecord if that is another type


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
    """The record in one line; NotARecord if it is torn, damaged, or something else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, no UTF-8, or a number of a million digits
        raise NotARecord("no JSON") from problem
    return from_json(value)


def holds_record(line: bytes) -> bool:
    """Whether a line is one of a records.jsonl."""
    try:
        return not isinstance(from_line(line), Unknown)
    except NotARecord:
        return False


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


def _instance(of: type, words: str) -> Reader:
    """A reader that takes values of one type as they are."""

    def read(value: object) -> object:
        if isinstance(value, of):
            return value
        raise NotARecord(f"{value!r:.40} is not {words}")

    return read


_text, _yes_or_no, _object = _instance(str, "text"), _instance(bool, "true or false"), _instance(dict, "an object")


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


_BY_TYPE: dict[Any, Reader] = {int: _whole, float: _number_or_nan, str: _text, bool: _yes_or_no, Finding: _finding}


def _reader(hint: Any) -> Reader:
    """How a field of this type is read. Texts are not held to their Literal: a later version may have more words."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (_reader(part) for part in get_args(hint) if part is not NoneType)
        known = _number if inner is _number_or_nan else inner
        return lambda value: None if value is None else known(value)
    if get_origin(hint) is Literal:
        return _text
    return _BY_TYPE.get(hint, _object)


def _readers(record: type[Any]) -> dict[str, Reader]:
    """How each field of a kind of record is read, in their order."""
    hints = get_type_hints(record)
    return {item.name: _reader(hints[item.name]) for item in fields(record) if item.name != "more"}


_READERS = {kind: _readers(record) for kind, record in KINDS.items()}
