"""Where a run would happen: a card, and what other programs hold of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onecard.config.schema import RunConfig
from onecard.machine import GpuStatus, Program
from onecard.plan.cards import SAME_SIZE, Card, matching_cards, plain_card
from onecard.units import GIB

DESKTOP_BYTES = 2 * GIB  # a screen, a browser and an editor; the RTX 4070 of the notes showed 2,118 MiB


@dataclass(frozen=True, kw_only=True)
class Place:
    """A card, and what other programs hold of it."""

    card: Card
    other_bytes: int | None = None  # held by other programs; None where neither the user nor the driver said
    programs: tuple[Program, ...] = ()
    source: str = ""  # what named the card, where nobody typed its name
    notes: tuple[str, ...] = ()  # what to know about measurements of this machine's card that were not used

    @property
    def available_bytes(self) -> int:
        """What the driver may show for our process before the card is full."""
        return max(0, self.card.allocatable_bytes - (self.other_bytes or 0))

    def available_bytes_for(self, config: RunConfig) -> int:
        """The same for a run: no more than its memory_limit."""
        return min(self.available_bytes, config.memory_limit or self.available_bytes)

    def beside_desktop_for(self, config: RunConfig) -> int | None:
        """The same with a desktop on the card; None where it is known what other programs hold."""
        if self.other_bytes is not None:
            return None
        return replace(self, other_bytes=DESKTOP_BYTES).available_bytes_for(config)

    def room_bytes_for(self, config: RunConfig) -> int:
        """What a run is planned in: beside what others are known to hold, or beside a desktop."""
        desktop = self.beside_desktop_for(config)
        return self.available_bytes_for(config) if desktop is None else desktop

    def with_memory(self, *, vram_bytes: int | None, other_bytes: int | None, source: str = "as given") -> Place:
        """The same place with another size of card, or another share held by others; None keeps what is.

        `source` says where the size is from.
        """
        return replace(
            self,
            card=self.card if vram_bytes is None else self.card.with_memory(vram_bytes, source=source),
            other_bytes=self.other_bytes if other_bytes is None else other_bytes,
            programs=self.programs if other_bytes is None else (),
        )


def place_of(status: GpuStatus) -> Place:
    """This machine's card as its driver describes it; speed and context from the table where the model is known."""
    named = matching_cards(status.name)
    known = [card for card in named if abs(card.vram_bytes - status.total_bytes) < SAME_SIZE * card.vram_bytes] or named
    card = known[0] if len(known) == 1 else replace(plain_card(status.total_bytes), name=status.name)
    said = "the driver, now"
    card = replace(
        card,
        compute_capability=status.compute_capability,
        vram_bytes=status.total_bytes,
        vram_source=said,
        allocatable_bytes=status.total_bytes - status.driver_bytes,
        allocatable_source=said,
        native_bf16=status.compute_capability >= (8, 0),
    )
    return Place(card=card, other_bytes=status.used_bytes, programs=status.programs)
