"""The card a user names, or this machine's -> a place to plan for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from onecard.errors import MachineError, UsageError

if TYPE_CHECKING:
    from onecard.machine import GpuStatus
    from onecard.plan.cards import Card
    from onecard.plan.place import Place


def place_named(gpu: str | None, vram: int | None, other: int | None) -> Place | None:
    """The card that was named, or this machine's; None where there is none.

    A named card that is in this machine is taken as its driver shows it, with what other programs hold now.
    """
    from onecard.plan.cards import find_card, plain_card
    from onecard.plan.place import Place
    from onecard.units import MIB

    for option, size_bytes, least_bytes in (("--vram", vram, MIB), ("--other", other, 0)):
        if size_bytes is not None and size_bytes < least_bytes:
            raise UsageError(
                f"{option} of {size_bytes:,} bytes is not a size of a card's memory",
                why=f"it takes at least {least_bytes:,} bytes",
                fix=f"{option} 2.1GiB",
                name="bad-size",
            )
    if gpu not in (None, "auto", "none"):
        card = find_card(gpu)
        named = next((place for place in _places_here() if place.card.name == card.name), Place(card=card))
        return named.with_memory(vram_bytes=vram, other_bytes=other, source="--vram")
    if gpu == "auto" or (gpu is None and vram is None):
        place = place_here()
        if place:
            return place.with_memory(vram_bytes=vram, other_bytes=other, source="--vram")
        if gpu == "auto":
            raise MachineError(
                "no NVIDIA card answers on this machine",
                why="NVML, the driver's own interface, is not there or does not respond",
                fix='name the card to plan for: --gpu "RTX 4070"',
                name="no-gpu",
            )
    return Place(card=plain_card(vram, source="--vram"), other_bytes=other) if vram is not None else None


def _places_here() -> Iterator[Place]:
    """This machine's cards, in the order of CUDA's numbers."""
    number = 0
    while place := place_here(f"cuda:{number}"):
        yield place
        number += 1


def as_measured_here(card: Card | None) -> Card | None:
    """The card with what was measured of this machine's, where that is the same model."""
    if card is None:
        return None
    here = next((place.card for place in _places_here() if place.card.name == card.name), None)
    if here is None or here.calibration is None:
        return card
    return replace(
        card,
        calibration=here.calibration,
        reserved_error=here.reserved_error,
        context_bytes=here.context_bytes,
        context_source=here.context_source,
        context_error_bytes=here.context_error_bytes,
    )


def place_here(device: str = "auto") -> Place | None:
    """This machine's card `device` (auto, cuda, cuda:1), with what other programs hold now; None if NVML knows none."""
    from onecard.machine import read_gpu
    from onecard.plan.place import place_of

    number = device.partition(":")[2]
    status = read_gpu(int(number) if number.isdecimal() else 0)
    return _as_measured(place_of(status), status) if status else None


def _as_measured(place: Place, status: GpuStatus) -> Place:
    """The place with what `onecard tune` measured on this very card, where it did."""
    from onecard.inputs.calibration import Device, calibration_of, torch_here
    from onecard.plan.calibrated import calibrated

    found, note = calibration_of(Device(card=status.name, driver=status.driver, torch=torch_here()))
    place = replace(place, notes=(note,) if note else ())
    return calibrated(place, found) if found else place
