"""The one reader of JSON that may lie: its size and depth are checked before it is parsed, its types before it is used.

A file may be damaged, made by another program, or made to do harm. Size and depth bound the memory that reading takes;
the small readers below accept one kind of value each and refuse the rest with a reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from onecard import units
from onecard.opening import NotAFile, open_file

T = TypeVar("T")
DEEPEST = 64  # lists and objects inside each other; our own files have 4
LONGEST_BYTES = units.MIB  # of a file with settings or a state; ours have some 30 KB
LARGEST_WHOLE = 2**63 - 1
LARGEST_NUMBER = 1e39  # a little more than the largest float32: no training measures more
LONGEST_TEXT = 4096  # of a setting, as in a config file
LONGEST_SECONDS = 1e11  # 3,000 years

# Text in quotes is skipped, closed or not, so that the time is linear in the length.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.?)*+"?|([\[{])|([\]}])', re.DOTALL)


class BadJson(ValueError):
    """JSON that is not what it should be; the message says why."""


def parsed(content: bytes, *, deepest: int = DEEPEST) -> object:
    """The value in JSON text; BadJson if it is no JSON, no UTF-8 or too deep. As large as the text, within a factor."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadJson("it is not UTF-8 text") from None
    if text.count("[") + text.count("{") > deepest and _depth(text) > deepest:
        raise BadJson(f"it has more than {deepest} lists or objects inside each other")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, or a number of more than 4,300 digits
        raise BadJson(f"it is not JSON: {str(problem)[:80]}") from None


def _depth(text: str) -> int:
    """How many lists and objects are inside each other at most."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        if found[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif found[2]:
            depth -= 1
    return deepest


def read_object(path: Path, *, longest_bytes: int = LONGEST_BYTES, deepest: int = DEEPEST) -> dict[str, object]:
    """The JSON object in a file; BadJson if it is something else or too large, OSError if it cannot be read."""
    try:
        with open_file(path) as file:
            content = file.read(longest_bytes + 1)
    except NotAFile:
        raise BadJson("it is not a regular file") from None
    if len(content) > longest_bytes:
        raise BadJson(f"it is larger than {units.size(longest_bytes)}")
    return mapping(parsed(content, deepest=deepest))


# Readers: a value of one kind, or BadJson


def field(content: Mapping[str, object], name: str, read: Callable[[object], T]) -> T:
    """The field `name`, read by `read`; the reason for a refusal names it. A missing field is read as None."""
    try:
        return read(content.get(name))
    except BadJson as problem:
        missing = "is missing" if name not in content else str(problem)
        raise BadJson(f"{name} {missing}") from None


def optional(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """The same reader, which accepts null too."""
    return lambda value: None if value is None else read(value)


def whole(value: object) -> int:
    """A whole number that fits into 64 bits; 6e5 is one, true is not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        value = int(value)
    if type(value) is not int or abs(value) > LARGEST_WHOLE:
        raise BadJson(f"is {_shown(value)}, not a whole number")
    return value


def count(value: object) -> int:
    """A whole number from 0."""
    if (found := whole(value)) < 0:
        raise BadJson(f"is {found}, less than 0")
    return found


def positive(value: object) -> int:
    """A whole number from 1."""
    if (found := whole(value)) < 1:
        raise BadJson(f"is {found}, less than 1")
    return found


def number(value: object) -> float:
    """A number that is finite and not absurdly large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadJson(f"is {_shown(value)}, not a number")
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:  # NaN is refused here, too
        raise BadJson(f"is {_shown(value)}, not a number that a run can have")
    return float(value)


def seconds(value: object) -> float:
    """A duration."""
    found = number(value)
    if not 0 <= found <= LONGEST_SECONDS:
        raise BadJson(f"is {found:g}, not a duration in seconds")
    return found


def text(value: object) -> str:
    if not isinstance(value, str):
        raise BadJson(f"is {_shown(value)}, not text")
    return value


def yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadJson(f"is {_shown(value)}, not true or false")
    return value


def scalar(value: object) -> bool | float | int | str | None:
    """A setting: a number that fits into 64 bits, a text, true, false or null."""
    if isinstance(value, dict | list) or not isinstance(value, bool | float | int | str | None):
        raise BadJson(f"is {_shown(value)}, not a setting")
    if type(value) is int:
        return whole(value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise BadJson(f"is a text of {len(value):,} characters")
    return value


def mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadJson(f"is {_shown(value)}, not an object")
    return value


def mapping_of(read: Callable[[object], T]) -> Callable[[object], dict[str, T]]:
    """A reader of objects all of whose values `read` accepts."""

    def each(value: object) -> dict[str, T]:
        content = mapping(value)
        return {name: field(content, name, read) for name in content}

    return each


def list_of(read: Callable[[object], T]) -> Callable[[object], list[T]]:
    """A reader of lists all of whose items `read` accepts."""

    def each(value: object) -> list[T]:
        if not isinstance(value, list):
            raise BadJson(f"is {_shown(value)}, not a list")
        return [read(item) for item in value]

    return each


def _shown(value: object) -> str:
    """A value in a few characters; of a list or object only the kind, because it may be large."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if type(value) is int and abs(value) > LARGEST_WHOLE:
        return f"a number of {math.ceil(value.bit_length() * math.log10(2))} digits"
    shown = json.dumps(value) if isinstance(value, str | float | int | bool | None) else type(value).__name__
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
