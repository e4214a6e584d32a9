"""What the driver showed, to compare with the prediction: this process, other programs, unexplained."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from onecard.plan.cards import SAME_SIZE, Card, known_cards, matching_cards
from onecard.plan.memory.predict import Memory
from onecard.plan.place import Place
from onecard.units import MIB


@dataclass(frozen=True, kw_only=True)
class DriverFigures:
    """Figures of nvidia-smi, in bytes; None if it did not show them."""

    process_bytes: int | None = None  # not shown on Windows with its usual driver model
    used_bytes: int | None = None  # by everything on the card
    total_bytes: int | None = None
    card_name: str = ""  # as printed, perhaps cut off; empty if the text does not have it

    @property
    def other_bytes(self) -> int | None:
        """The bytes that other programs use; None if not known."""
        if self.used_bytes is None or self.process_bytes is None:
            return None
        return max(0, self.used_bytes - self.process_bytes)

    def unexplained_bytes(self, memory: Memory) -> int | None:
        """What the driver showed beyond the prediction; None where one of them is without the context, or unknown."""
        if self.process_bytes is None or not memory.knows_context:
            return None
        return self.process_bytes - memory.process_bytes

    @property
    def place(self) -> Place | None:
        """The card that was shown, and the memory that other programs used; None if the card is not clear."""
        found = [card for card in _named(self.card_name) if self._is_of_size(card)]
        if len(found) != 1:
            return None
        source = "the nvidia-smi text"
        card = found[0]
        if self.total_bytes:
            card = replace(card, vram_bytes=self.total_bytes, vram_source=source)
        return Place(card=card, other_bytes=self.other_bytes, source=source)

    def _is_of_size(self, card: Card) -> bool:
        return self.total_bytes is None or abs(card.vram_bytes - self.total_bytes) <= SAME_SIZE * card.vram_bytes


def _named(name: str) -> tuple[Card, ...]:
    """The cards that a name printed by the driver may mean; if the name is cut off, all that start with it."""
    if not name.endswith("..."):
        return matching_cards(name) if name else ()
    begun = name.removesuffix("...").removeprefix("NVIDIA").strip().lower()
    return tuple(card for card in known_cards() if begun and card.name.lower().startswith(begun))


# The first of a card's two lines: its number, its name, and its persistence mode (on Windows: its driver model).
_CARD = re.compile(r"^\|\s{1,4}(\d{1,3})\s{2,}(\S.*?)(?:\s+(?:Off|On|N/A|WDDM|TCC|MCDM))?\s*\|.*\|")
_USED_AND_TOTAL = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_NOT_TOLD = r"\[?(?:N/A|Not Available|Insufficient Permissions)\]?"
_PROCESS = re.compile(
    rf"^\|?\s*(\d+)\s+\S+\s+\S+\s+\d+\s+([CG+]+)\s+(.*?)\s+(?:(\d+)\s*MiB|{_NOT_TOLD})\s*(?:\||$)", re.MULTILINE
)
_CSV_PROCESS = re.compile(rf"^\s*\d+\s*,\s*([^,\n]*?)\s*,\s*(?:(\d+)\s*(?:MiB)?|{_NOT_TOLD})\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Process:
    """A process that computes on a card."""

    name: str
    card: int | None  # None if the text does not show it
    mib: int | None  # None if the driver does not show it

    @property
    def rank(self) -> tuple[bool, int]:
        """Python processes first, then the larger ones."""
        return "python" in self.name.lower(), self.mib or 0


def read_nvidia_smi(text: str) -> DriverFigures | None:
    """The largest computing process in nvidia-smi's table or CSV, and the memory of its card.

    None if there is no such process, or if neither its memory nor its card's is shown.
    """
    table = [
        _Process(name=name, card=int(card), mib=int(mib) if mib else None)
        for card, kind, name, mib in _PROCESS.findall(text)
        if "C" in kind
    ]
    listed = [_Process(name=name, card=None, mib=int(mib) if mib else None) for name, mib in _CSV_PROCESS.findall(text)]
    if not (table or listed):
        return None
    process = max(table or listed, key=lambda process: process.rank)
    shown = _cards(text).get(process.card)
    if process.mib is None:
        return shown
    return replace(shown or DriverFigures(), process_bytes=process.mib * MIB)


def _cards(text: str) -> dict[int | None, DriverFigures]:
    """What is shown for each card, by its number; if the table has no numbers, cards are counted."""
    found: dict[int | None, DriverFigures] = {}
    number: int | None = None
    name = ""
    for line in text.splitlines():
        if named := _CARD.match(line):
            number, name = int(named[1]), named[2]
        if sizes := _USED_AND_TOTAL.search(line):
            seen = DriverFigures(used_bytes=int(sizes[1]) * MIB, total_bytes=int(sizes[2]) * MIB, card_name=name)
            found.setdefault(len(found) if number is None else number, seen)
            number, name = None, ""
    return found
