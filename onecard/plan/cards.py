"""Graphics cards: their memory, their speed, and how to find one by the name a person types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from onecard.errors import UnknownCard
from onecard.paper.device import Device
from onecard.plan.calibration import Calibration
from onecard.plan.card_table import ROWS, SEEN_CONTEXT, SEEN_MEMORY, Row, bf16_source, specified_by
from onecard.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class Card:
    """One model of card. None means not known; the sources say where each figure comes from."""

    name: str
    architecture: str = ""
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    vram_bytes: int  # what the driver shows
    vram_source: str
    allocatable_bytes: int  # the part that torch can use
    allocatable_source: str
    bandwidth_bytes_per_second: float | None = None
    peak_flops: float | None = None  # dense, 16-bit operands, fp32 accumulate
    fp32_flops: float | None = None
    peak_source: str = ""
    specification_source: str = ""  # for compute capability, multiprocessors, bandwidth and fp32_flops
    native_bf16: bool | None = None
    bf16_source: str = ""
    context_bytes: int = 0  # the process's CUDA context and loaded kernels, outside the allocator
    context_source: str = ""
    context_error_bytes: int = 0  # how far context_bytes may be off
    calibration: Calibration | None = None  # what was measured on the very card in this machine
    reserved_error: float | None = None  # share by which what PyTorch reserves was predicted wrongly on it

    @property
    def laptop(self) -> bool:
        return "Mobile" in self.name.split()

    def best_dtype(self) -> str:
        """What dtype=auto means here."""
        return "float16" if self.native_bf16 is False else "bfloat16"

    def with_memory(self, size_bytes: int, *, source: str = "as given") -> Card:
        """The same card with `size_bytes` of memory, all of it for the process and its context."""
        said = plain_card(size_bytes, source=source)
        return replace(
            self,
            vram_bytes=said.vram_bytes,
            vram_source=said.vram_source,
            allocatable_bytes=said.allocatable_bytes,
            allocatable_source=said.allocatable_source,
        )


@cache
def known_cards() -> tuple[Card, ...]:
    """Every card in the table."""
    return tuple(_card(row) for row in ROWS)


def plain_card(size_bytes: int, *, source: str = "as given") -> Card:
    """A card of which only the memory is known; `source` says from where."""
    context, context_error, context_source = _context(None, None)
    return Card(
        name="a card",
        vram_bytes=size_bytes,
        vram_source=source,
        allocatable_bytes=size_bytes,
        allocatable_source=source,
        context_bytes=context,
        context_source=context_source,
        context_error_bytes=context_error,
    )


def find_card(name: str) -> Card:
    """The card that a person means by `name`; UnknownCard if no card or several cards match."""
    found = matching_cards(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownCard(
            f'"{name}" could be {_one_of(card.name for card in found)}',
            why="they differ in memory or speed, so each needs its own plan",
            meant=found[0].name,
            name="ambiguous-card",
        )
    raise _of_other_memory(name) or _unknown(name)


def matching_cards(name: str) -> tuple[Card, ...]:
    """The cards that `name` may mean: an exact model before suffixes (Ti, SUPER), desktop before laptop.

    An NVL is meant only by that word: to its driver an H200 SXM is an H200.
    A memory size in the name (12 GB) must be the card's own, and it never selects another model. For example, the table
    has no RTX 3060 with 8 GB, and that name does not match the RTX 3060 Ti, although the Ti has 8 GB.
    """
    model, memory = _model_and_memory(name)
    found = [card for card in _of_model(model) if memory <= {_memory_word(card)}]
    found = [card for card in found if not (card.laptop or "nvl" in _words(card.name) - model)] or found
    return tuple([card for card in found if _memory_word(card) not in _words(card.name)] or found)


def of_one_speed(found: tuple[Card, ...]) -> Card | None:
    """One card for several that a name may mean, if their peaks agree; what fits the smallest fits all.

    Of those with the least memory the higher peak is taken, so no share of a peak is overstated.
    """
    peaks = [card.peak_flops for card in found if card.peak_flops]
    if not peaks or max(peaks) > SAME_PEAK * min(peaks):
        return None
    return max(found, key=lambda card: (-_BOX_GB[card.name], card.peak_flops or 0.0))


SAME_SIZE = 0.05  # drivers show a little less than the size on the box, and each driver differs
SAME_PEAK = 1.15  # times: a V100 on PCIe has 112 TFLOP/s, on SXM2 125


def _of_model(model: set[str]) -> list[Card]:
    """The desktop and laptop cards of exactly this model; if there are none, those with more words in their name."""
    if model <= _SUFFIXES:
        return []
    models = [(card, _model_and_memory(card.name)[0]) for card in known_cards()]
    exact = [card for card, words in models if model in (words, words - {"mobile"})]
    return exact or [card for card, words in models if model < words]


def _of_other_memory(name: str) -> UnknownCard | None:
    """The error if the model is known, but not with the memory in `name`; None if that is not the mistake."""
    model, memory = _model_and_memory(name)
    same_model = _of_model(model)
    if not memory or not same_model:
        return None
    said = [f"{card.name} has {_gigabytes(_memory_word(card))}" for card in same_model]
    alike = [card for card in known_cards() if model - {"mobile"} <= _words(card.name)]
    if same_memory := [card.name for card in alike if memory == {_memory_word(card)}]:
        said.append(f"with {_gigabytes(*memory)} there is {_one_of(same_memory)}")
    return UnknownCard(f'no card is called "{name}"', why="; ".join(said), meant=same_model[0].name)


def _unknown(name: str) -> UnknownCard:
    near = _nearest_names(name) or _nearest_names(_LETTER_FOR_ZERO.sub("0", name))
    _, memory = _model_and_memory(name)
    size = f"{min(memory, default='8gb').removesuffix('gb')}GiB"
    return UnknownCard(
        f'no card is called "{name}"',
        why=f"{len(known_cards())} cards are known; {f'similar: {_one_of(near)}' if near else 'no name is similar'}",
        meant=near[0] if near else None,
        size=size,
    )


def search_cards(text: str) -> tuple[Card, ...]:
    """The cards whose name or architecture has every word of `text`, or else its letters; all if `text` is empty."""
    words, letters = _words(text), text.strip().lower()
    by_word = [c for c in known_cards() if words <= _words(c.name) | {w.lower() for w in c.architecture.split()}]
    by_letters = [card for card in known_cards() if letters in card.name.lower()]
    if not letters:
        return known_cards()
    return tuple((by_word if words else []) or by_letters or [find_card(text)])  # its error names similar cards


_LETTER_FOR_ZERO = re.compile(r"(?<=\d)o|o(?=\d)", re.I)  # RTX 4O70

# Words that name a vendor or a product line but never distinguish two cards.
_IGNORED = frozenset(
    "nvidia geforce rtx gtx gt amd radeon rx intel apple tesla quadro instinct gpu graphics card".split()
)
_IGNORED |= frozenset({"generation", "workstation", "edition", "founders", "the"})
_SYNONYMS = {"laptop": "mobile", "notebook": "mobile", "maxq": "mobile", "hbm3": "sxm5"}

# Words that distinguish cards of one model. Alone they match no card: "ada" does not mean RTX 6000 Ada.
_SUFFIXES = frozenset("ti super xt xtx mobile pro ada blackwell pcie sxm sxm2 sxm4 sxm5 nvl 32c 40c 76c".split())


def _words(name: str) -> set[str]:
    """`NVIDIA GeForce RTX4070-Ti (Laptop)` -> {4070, ti, mobile}"""
    text = re.sub(r"[\W_]+", " ", name.lower())
    text = re.sub(r"(\d+) ?gi?b\b", r" \1gb ", text)
    text = re.sub(r"gh200 +480gb", "gh200 96gb", text)  # the driver names it by its processor's memory
    text = re.sub(r"\b(rtx|gtx|rx|gt)(?=[a-z]?\d)", r"\1 ", text)  # rtx4070
    text = re.sub(r"(?<=\d{4})(ti|super|xtx|xt|laptop|mobile)", r" \1 ", text)  # 4070ti
    text = re.sub(r"\bti(?=super)", "ti ", re.sub(r"\bmax q\b", "mobile", text))
    text = re.sub(r"\b(m\d) (?=pro|max|ultra)", r"\1", text)  # an M1 is not an M1 Max
    return {_SYNONYMS.get(word, word) for word in re.findall(r"[a-z0-9]+", text)} - _IGNORED


def _model_and_memory(name: str) -> tuple[set[str], set[str]]:
    """`RTX 3060 Ti 8 GB` -> {3060, ti}, {8gb}"""
    words = _words(name)
    memory = {word for word in words if re.fullmatch(r"\d+gb", word)}
    return words - memory, memory


def _numbers(name: str) -> list[str]:
    """`GTX 1080 Ti 11 GB` -> [1080]"""
    return re.findall(r"\d+", " ".join(_model_and_memory(name)[0]))


def _begin(typed: list[str], known: list[str]) -> bool:
    """Whether each typed number is the beginning of a known number."""
    return all(any(number.startswith(digits) for number in known) for digits in typed)


def _memory_word(card: Card) -> str:
    return f"{_BOX_GB[card.name]:g}gb"


def _gigabytes(*words: str) -> str:
    return " and ".join(f"{word.removesuffix('gb')} GB" for word in sorted(words))


_BOX_GB = {row.name: row.memory_gb for row in ROWS}  # the size on the box


def _one_of(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} or {last}" if most else last


def _nearest_names(name: str) -> list[str]:
    """Up to three cards with these words in their name, or else with a similar name and the same number."""
    if said := name.strip():
        holding = [card.name for card in known_cards() if re.search(rf"\b{re.escape(said)}\b", card.name, re.I)]
        if holding:
            return holding[:3]
    alike = [card for card in known_cards() if _begin(_numbers(name), _numbers(card.name))]
    plain = {" ".join(sorted(_words(card.name))): card.name for card in alike}
    near = difflib.get_close_matches(" ".join(sorted(_words(name))), plain, n=3, cutoff=0.5)
    if near:
        return [plain[key] for key in near]
    digits = sorted("".join(_numbers(name)))  # swapped, as in 4700 for 4070
    return [card.name for card in known_cards() if len(digits) > 2 and sorted("".join(_numbers(card.name))) == digits][
        :3
    ]


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
        specification_source=specified_by(row),
        native_bf16=row.native_bf16,
        bf16_source=bf16_source(row),
        context_bytes=context,
        context_source=context_source,
        context_error_bytes=context_error,
    )


# If torch's figure for a card is not known, the driver's share of similar cards is used (card_table.SEEN_MEMORY).
_DRIVER_KEEPS_BYTES = 400 * MIB

# A context holds state for each multiprocessor, so it grows with their number. A line fitted to 15 processes on 11
# models of card (SEEN_CONTEXT and similar messages) is off by at most 78 MiB.
_CONTEXT_BASE_MIB, _CONTEXT_MIB_PER_MULTIPROCESSOR = 24, 3.4
_LINE_ERROR_MIB = 80
_TOLD_ERROR_MIB = 50  # messages about one model of card differ by up to 47 from their midpoint
_MIDDLING_MIB, _MIDDLING_ERROR_MIB = 300, 210  # cards up to 48 GB have 135 to 507


def _context(name: str | None, multiprocessors: int | None) -> tuple[int, int, str]:
    """The bytes of CUDA context and kernels in a training process, their possible error in bytes, and their source."""
    if seen := SEEN_CONTEXT.get(name or ""):
        error = 0 if seen.source.startswith("measured") else _TOLD_ERROR_MIB
        return seen.mib * MIB, error * MIB, seen.source
    if multiprocessors is None:
        return _MIDDLING_MIB * MIB, _MIDDLING_ERROR_MIB * MIB, "estimate: an average card"
    size = _CONTEXT_BASE_MIB + _CONTEXT_MIB_PER_MULTIPROCESSOR * multiprocessors
    source = (
        f"estimate: {_CONTEXT_BASE_MIB} MiB and {_CONTEXT_MIB_PER_MULTIPROCESSOR} per multiprocessor, "
        f"within {_LINE_ERROR_MIB} MiB"
    )
    return round(size) * MIB, _LINE_ERROR_MIB * MIB, source


def device_of(card: Card | None) -> Device:
    """The facts of a card that decide sizes; an RTX 4070's where the card is unknown or not from NVIDIA."""
    if card is None or card.compute_capability is None:
        return Device(capability=(8, 9), multiprocessors=46)
    return Device(capability=card.compute_capability, multiprocessors=card.multiprocessors or 46)
