"""Bytes, tokens, seconds: parse what people type, print what people read.

The code uses base units everywhere; only this module divides by 2**30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

KIB, MIB, GIB = 2**10, 2**20, 2**30

MOST_GIB_OF_A_CARD = 288  # a number without a unit, up to this size, probably means GiB

# Card boxes and `free` use GB; allocators use GiB. K/M/G/T alone are binary, as in nvidia-smi and PyTorch.
_BYTES = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "kb": 10**3,
    "m": MIB,
    "mib": MIB,
    "mb": 10**6,
    "g": GIB,
    "gib": GIB,
    "gb": 10**9,
    "t": 2**40,
    "tib": 2**40,
    "tb": 10**12,
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
# A comma is accepted only between thousands: half of Europe writes 2,1 for 2.1, which must never become 21.
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)"
_NUMBER_AND_UNIT = re.compile(rf"\s*({_WHOLE}(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def parse_bytes(text: str) -> int:
    """The bytes in "4464MiB", "12 GB", "11.69GiB", "1024"; ValueError for any other form."""
    return _scaled(text, _BYTES)


def parse_count(text: str) -> int:
    """The number in "124M", "10B", "524288"; ValueError for any other form."""
    return _scaled(text, _COUNTS)


def _scaled(text: str, scales: dict[str, int]) -> int:
    found = _NUMBER_AND_UNIT.fullmatch(text)
    scale = scales.get(found[2].lower()) if found else None
    if not found or scale is None:
        raise ValueError(text)
    number = float(found[1].replace(",", "").replace("_", ""))
    if number * scale > 2**63:
        raise ValueError(text)
    return round(number * scale)


class NotAnAmount(ValueError):
    """Text that is not an amount; `meant` is what was probably meant, None if that is not clear."""

    def __init__(self, text: str, *, meant: str | None) -> None:
        super().__init__(text)
        self.meant = meant


def typed_bytes(text: str) -> int:
    """The bytes in a size that a person typed. It needs a unit, unless it is 0 or at least 1 MiB; else NotAnAmount."""
    try:
        size = parse_bytes(text)
    except ValueError:
        raise NotAnAmount(text, meant=with_point(text, parse=parse_bytes)) from None
    has_unit, is_zero = text.strip()[-1].isalpha(), not text.strip(" 0.")
    if has_unit or is_zero or size >= MIB:
        return size
    raise NotAnAmount(text, meant=f"{text.strip()}{'GiB' if size <= MOST_GIB_OF_A_CARD else 'MiB'}")  # 12, or 4464


def typed_count(text: str) -> int:
    """The count in a number that a person typed; NotAnAmount for anything else."""
    try:
        return parse_count(text)
    except ValueError:
        raise NotAnAmount(text, meant=with_point(text, parse=parse_count)) from None


def with_point(text: str, *, parse: Callable[[str], int]) -> str | None:
    """ "2.1GiB" for "2,1GiB", if `parse` accepts that; None if the comma is not the mistake."""
    meant = text.strip().replace(",", ".", 1)
    try:
        parse(meant)
    except ValueError:
        return None
    return meant if "," in text else None


def mib(size_bytes: int) -> str:
    """`4,464 MiB`"""
    return f"{size_bytes / MIB:,.0f} MiB"


def gib(size_bytes: int) -> str:
    """`11.69 GiB`"""
    return f"{size_bytes / GIB:,.2f} GiB"


def size(size_bytes: int) -> str:
    """`11.69 GiB`, `148 MiB`, `12 KiB`: in the largest unit that gives at least 1"""
    if size_bytes >= GIB:
        return gib(size_bytes)
    return mib(size_bytes) if size_bytes >= MIB else f"{size_bytes / KIB:,.0f} KiB"


def as_typed(size_bytes: int) -> str:
    """`12GiB`, `1.5GiB`, `11GB`: as people type a size; the plain number of bytes if no unit gives it exactly."""
    for unit in ("GiB", "GB", "MiB", "MB"):
        scale = _BYTES[unit.lower()]
        number = f"{size_bytes / scale:.2f}".rstrip("0").rstrip(".")
        if round(float(number) * scale) == size_bytes:
            return number + unit
    return str(size_bytes)


def count(things: float) -> str:
    """`40.56M`, `10.49B`, `512`: short enough for a sentence."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(things) >= scale * 0.9995:
            return f"{things / scale:.2f}{letter}"
    return f"{things:,.0f}" if abs(things) >= 100 or things == int(things) else f"{things:.3g}"


def flops(per_second: float) -> str:
    """`58.3 TFLOP/s`"""
    return f"{per_second / 1e12:,.1f} TFLOP/s"


def things(count: int, name: str) -> str:
    """`1 head`, `12 heads`"""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def listed(words: Iterable[str]) -> str:
    """`a, b and c`"""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def duration(seconds: float) -> str:
    """`2 d 5 h`, `21.7 h`, `12 min`, `3.2 s`; `endless` from 1e15 seconds on"""
    if not seconds < 1e15:
        return "endless"
    if seconds >= 48 * 3600:
        days, hours = divmod(round(seconds / 3600), 24)
        return f"{days} d {hours} h"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.1f} s"
