"""The sizes in torch's out-of-memory messages, in four wordings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onecard.units import parse_bytes

_SIZE = r"(\d{1,12}(?:\.\d{1,6})? [KMGT]?i?B)"
# The wordings of torch 1.0 ("cached"), 1.5 ("reserved in total"), 2.0 ("capacty of ... of which"), 2.2 ("capacity")
_FIELDS = {
    "tried_bytes": rf"[Tt]ried to allocate {_SIZE}",
    "capacity_bytes": rf"{_SIZE} total capacity|total capaci?ty of {_SIZE}",
    "free_bytes": rf"{_SIZE} free|of which {_SIZE} is free",
    "allocated_bytes": rf"{_SIZE} already allocated|allocated memory {_SIZE} is allocated by PyTorch",
    "reserved_unallocated_bytes": rf"{_SIZE} cached|{_SIZE} is reserved by PyTorch but",
    "reserved_bytes": rf"{_SIZE} reserved in total",
    "allowed_bytes": rf"{_SIZE} allowed",  # a limit below the card, set by the program
    "process_bytes": rf"this process has {_SIZE} memory in use",
}
_PATTERNS = {name: re.compile(text, re.ASCII) for name, text in _FIELDS.items()}
_OTHER_PROCESS = re.compile(rf"Process \d{{1,12}} has {_SIZE} memory in use", re.ASCII)


def oom_sizes(text: str) -> Mapping[str, int]:
    """The sizes in a message, in bytes, by names such as "tried_bytes"; missing ones are left out."""
    sizes = {}
    for name, pattern in _PATTERNS.items():
        found = pattern.search(text)
        size = _bytes(next(group for group in found.groups() if group)) if found else None
        if size is not None:
            sizes[name] = size
    total = sizes.pop("reserved_bytes", None)
    if total is not None and "allocated_bytes" in sizes:
        sizes.setdefault("reserved_unallocated_bytes", max(0, total - sizes["allocated_bytes"]))
    others = [size for found in _OTHER_PROCESS.finditer(text) if (size := _bytes(found[1])) is not None]
    if others:
        sizes["other_processes_bytes"] = sum(others)
    return sizes


def _bytes(text: str) -> int | None:
    """A size in the message, in bytes; None for the absurd sizes that torch prints with some drivers."""
    try:
        size = parse_bytes(text)
    except ValueError:
        return None
    return size if size < 2**50 else None
