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


_USED_AND_TOTAL = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_PROCESS = re.compile(r"^\|?\s*\d+\s+\S+\s+\S+\s+(\d+)\s+([CG+]+)\s+(.*?)\s+(\d+)\s*MiB", re.MULTILINE)
_CSV_PROCESS = re.compile(r"^\s*(\d+)\s*,\s*([^,\n]*?)\s*,\s*(\d+)\s*(?:MiB)?\s*$", re.MULTILINE)


def read_nvidia_smi(text: str) -> Seen | None:
    """The largest computing process of nvidia-smi's table or CSV, and what the whole card holds; None if neither."""
    table = [(kind, name, int(mib)) for _, kind, name, mib in _PROCESS.findall(text)]
    listed = [("C", name, int(mib)) for _, name, mib in _CSV_PROCESS.findall(text)]
    computing = [process for process in table or listed if "C" in process[0]]
    if not computing:
        return None
    python = [process for process in computing if "python" in process[1].lower()]
    largest = max(python or computing, key=lambda process: process[2])
    card = _USED_AND_TOTAL.search(text)
    return Seen(
        process_bytes=largest[2] * MIB,
        used_bytes=int(card[1]) * MIB if card else None,
        total_bytes=int(card[2]) * MIB if card else None,
    )
