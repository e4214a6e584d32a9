"""Graphics cards: what they hold, how fast they are, and finding one by the name a person types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from onecard.errors import UnknownCard
from onecard.plan.card_table import ROWS, SEEN_CONTEXT, SEEN_MEMORY, Row
from onecard.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class Card:
    """One model of card. None means nobody told us; sources say where each figure comes from."""

    name: str
    architecture: str = ""
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    vram_bytes: int  # what the driver shows
    vram_source: str
    allocatable_bytes: int  # what torch may take of it
    allocatable_source: str
    bandwidth_bytes_per_second: float | None = None
    peak_flops: float | None = None  # dense, 16-bit operands, fp32 accumulate
    fp32_flops: float | None = None
    peak_source: str = ""
    native_bf16: bool | None = None
    context_bytes: int = 0  # the process's CUDA context and loaded kernels, outside the allocator
    context_source: str = ""
    context_error_bytes: int = 0  # how far that may be off

    @property
    def laptop(self) -> bool:
        return "Mobile" in self.name.split()

    def best_dtype(self) -> str:
        """What dtype=auto means here."""
        return "float16" if self.native_bf16 is False else "bfloat16"

    def with_memory(self, size_bytes: int) -> Card:
        """The same card with `size_bytes` that torch may take."""
        said = plain_card(size_bytes)
        return replace(
            self,
            vram_bytes=said.vram_bytes,
            vram_source=said.vram_source,
            allocatable_bytes=said.allocatable_bytes,
            allocatable_source=said.allocatable_source,
        )


@cache
def known_cards() -> tuple[Card, ...]:
    """Every card of the table."""
    return tuple(_card(row) for row in ROWS)


def plain_card(size_bytes: int) -> Card:
    """A card of which only the memory is known (`--vram 4GiB`)."""
    context, context_error, context_source = _context(None, None)
    return Card(
        name="a card",
        vram_bytes=size_bytes,
        vram_source="--vram",
        allocatable_bytes=size_bytes,
        allocatable_source="--vram",
        context_bytes=context,
        context_source=context_source,
        context_error_bytes=context_error,
    )


def find_card(name: str) -> Card:
    """The one card a person means by `name`; UnknownCard if none or several."""
    found = matching_cards(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownCard(
            f'"{name}" could be {_one_of(card.name for card in found)}',
            why="they differ in memory or speed, so one plan cannot serve both",
            fix=f'--gpu "{found[0].name}"',
            name="ambiguous-card",
        )
    near = _nearest_names(name)
    raise UnknownCard(
        f'no card is called "{name}"',
        why=f"{len(known_cards())} cards are known; the nearest are {_one_of(near)}" if near else "nothing is near",
        fix=f'--gpu "{near[0]}"' if near else "onecard gpus lists all; --vram 12GiB plans for any card of that size",
    )


def matching_cards(name: str) -> tuple[Card, ...]:
    """The cards `name` may mean: an exact model before suffixes (Ti, SUPER, 12 GB), desktop before laptop."""
    asked = _words(name)
    memory = {word for word in asked if re.fullmatch(r"\d+gb", word)}
    asked -= memory
    if not asked:
        return ()
    candidates = [card for card in known_cards() if asked <= _words(card.name) and memory <= {_memory_word(card)}]
    exact = [card for card in candidates if asked == {w for w in _words(card.name) if not w.endswith("gb")}]
    same_memory_named = [card for card in exact if not any(w.endswith("gb") for w in _words(card.name))]
    found = same_memory_named or exact or candidates
    return tuple([card for card in found if not card.laptop] or found)


def search_cards(text: str) -> tuple[Card, ...]:
    """The cards whose name or architecture has every word of `text`; all of them for none."""
    words = _words(text)
    found = tuple(c for c in known_cards() if words <= _words(c.name) | {w.lower() for w in c.architecture.split()})
    plain = text.strip().lower()
    found = found if words or not plain else tuple(c for c in known_cards() if plain in c.name.lower())
    if not found:
        find_card(text)  # says what is near
    return found


# Words that name a vendor or a product line but never tell two cards apart.
_IGNORED = frozenset(
    "nvidia geforce rtx gtx gt amd radeon rx intel apple tesla quadro instinct gpu graphics card".split()
)
_IGNORED |= frozenset({"generation", "edition", "founders", "the"})
_SYNONYMS = {"laptop": "mobile", "notebook": "mobile", "maxq": "mobile", "hbm3": "sxm5"}


def _words(name: str) -> set[str]:
    """`NVIDIA GeForce RTX4070-Ti (Laptop)` -> {4070, ti, mobile}"""
    text = re.sub(r"(\d+)\s*gi?b\b", r" \1gb ", name.lower())
    text = re.sub(r"\b(rtx|gtx|rx|gt)(?=[a-z]?\d)", r"\1 ", text)  # rtx4070
    text = re.sub(r"(?<=\d{4})(ti|super|xtx|xt)", r" \1 ", text)  # 4070ti
    text = re.sub(r"\bti(?=super)", "ti ", text.replace("max-q", "mobile"))
    return {_SYNONYMS.get(word, word) for word in re.findall(r"[a-z0-9]+", text)} - _IGNORED


def _memory_word(card: Card) -> str:
    return next((f"{row.memory_gb:g}gb" for row in ROWS if row.name == card.name), "")


def _one_of(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} or {last}" if most else last


def _nearest_names(name: str) -> list[str]:
    plain = {" ".join(sorted(_words(card.name))): card.name for card in known_cards()}
    near = difflib.get_close_matches(" ".join(sorted(_words(name))), plain, n=3, cutoff=0.5)
    return [plain[key] for key in near]


def _card(row: Row) -> Card:
    seen = SEEN_MEMORY.get(row.name)
    nominal = round(row.memory_gb * GIB)
    capability = row.compute_capability and tuple(int(part) for part in row.compute_capability.split("."))
    vram, vram_source = nominal, "estimate: the size on the box"
    if seen and seen.driver_mib:
        vram, vram_source = seen.driver_mib * MIB, seen.driver_source
    allocatable, allocatable_source = vram - _DRIVER_KEEPS_BYTES, "estimate: the driver keeps about 400 MiB"
    if seen and seen.torch_gib:
        allocatable, allocatable_source = round(seen.torch_gib * GIB), seen.torch_source
    context, context_error, context_source = _context(row.name, row.multiprocessors)
    return Card(
        name=row.name,
        architecture=row.architecture,
        compute_capability=(capability[0], capability[1]) if capability else None,
        multiprocessors=row.multiprocessors,
        vram_bytes=vram,
        vram_source=vram_source,
        allocatable_bytes=allocatable,
        allocatable_source=allocatable_source,
        bandwidth_bytes_per_second=row.bandwidth_gb_per_second * 1e9,
        peak_flops=row.tensor_tflops * 1e12,
        fp32_flops=row.fp32_tflops * 1e12,
        peak_source=row.peak_source,
        native_bf16=row.native_bf16,
        context_bytes=context,
        context_source=context_source,
        context_error_bytes=context_error,
    )


# Where nobody has told what torch finds, the driver's share of like cards is taken (card_table.SEEN_MEMORY).
_DRIVER_KEEPS_BYTES = 400 * MIB

# A context holds per-multiprocessor state, so it grows with them: a line through 15 processes on 11 models of card
# (SEEN_CONTEXT and like messages) misses none by more than 78 MiB.
_CONTEXT_BASE_MIB, _CONTEXT_MIB_PER_MULTIPROCESSOR = 24, 3.4
_LINE_ERROR_MIB = 80
_TOLD_ERROR_MIB = 50  # messages about one model of card lie up to 47 from their middle
_MIDDLING_MIB, _MIDDLING_ERROR_MIB = 300, 210  # of cards up to 48 GB: 135 to 507


def _context(name: str | None, multiprocessors: int | None) -> tuple[int, int, str]:
    """Bytes of CUDA context and kernels in a training process, how far they may be off, and where they come from."""
    if seen := SEEN_CONTEXT.get(name or ""):
        error = 0 if seen.source.startswith("measured") else _TOLD_ERROR_MIB
        return seen.mib * MIB, error * MIB, seen.source
    if multiprocessors is None:
        return _MIDDLING_MIB * MIB, _MIDDLING_ERROR_MIB * MIB, "estimate: a middling card"
    size = _CONTEXT_BASE_MIB + _CONTEXT_MIB_PER_MULTIPROCESSOR * multiprocessors
    source = (
        f"estimate: {_CONTEXT_BASE_MIB} MiB and {_CONTEXT_MIB_PER_MULTIPROCESSOR} per multiprocessor, "
        f"within {_LINE_ERROR_MIB} MiB"
    )
    return round(size) * MIB, _LINE_ERROR_MIB * MIB, source
