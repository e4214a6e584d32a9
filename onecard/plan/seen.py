"""What the driver showed, set beside what was predicted: this process, other programs, unexplained."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onecard.units import MIB


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Figures of nvidia-smi, in bytes; None where it did not say."""

    process_bytes: int
    used_bytes: int | None = None  # by everything on the card
    total_bytes: int | None = None

    @property
    def other_bytes(self) -> int | None:
        """Held by other programs."""
        return None if self.used_bytes is None else max(0, self.used_bytes - self.process_bytes)


_CARD = re.compile(r"^\|\s{1,4}(\d{1,3})\s{2,}\S.*\|.*\|")  # the first line of a card's two: its number and name
_USED_AND_TOTAL = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_PROCESS = re.compile(r"^\|?\s*(\d+)\s+\S+\s+\S+\s+\d+\s+([CG+]+)\s+(.*?)\s+(\d+)\s*MiB", re.MULTILINE)
_CSV_PROCESS = re.compile(r"^\s*\d+\s*,\s*([^,\n]*?)\s*,\s*(\d+)\s*(?:MiB)?\s*$", re.MULTILINE)


def read_nvidia_smi(text: str) -> Seen | None:
    """The largest computing process of nvidia-smi's table or CSV, and what its whole card holds; None if no process."""
    table = [(int(card), kind, name, int(mib)) for card, kind, name, mib in _PROCESS.findall(text)]
    listed = [(None, "C", name, int(mib)) for name, mib in _CSV_PROCESS.findall(text)]
    computing = [process for process in table or listed if "C" in process[1]]
    if not computing:
        return None
    python = [process for process in computing if "python" in process[2].lower()]
    card, _, _, mib = max(python or computing, key=lambda process: process[3])
    used, total = _cards(text).get(card, (None, None))
    return Seen(process_bytes=mib * MIB, used_bytes=used, total_bytes=total)


def _cards(text: str) -> dict[int | None, tuple[int, int]]:
    """Bytes used and in all, by the number of the card; where the table does not say it, they are counted."""
    found: dict[int | None, tuple[int, int]] = {}
    number: int | None = None
    for line in text.splitlines():
        if named := _CARD.match(line):
            number = int(named[1])
        if sizes := _USED_AND_TOTAL.search(line):
            found.setdefault(len(found) if number is None else number, (int(sizes[1]) * MIB, int(sizes[2]) * MIB))
            number = None
    return found
