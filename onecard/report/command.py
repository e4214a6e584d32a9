"""What to type to start a planned run: as it is, or with a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from onecard import units
from onecard.config.command import flags_of, train_command
from onecard.config.resolve import Resolved
from onecard.plan.advice import Fix
from onecard.plan.candidate import Candidate
from onecard.plan.cards import known_cards
from onecard.plan.place import Place
from onecard.plan.plan import Plan, source_of
from onecard.plan.several_cards import Asked


def start_command(plan: Plan) -> str:
    """The run as it is: under onecard, unless only nanoGPT was asked for."""
    environment = plan.nanogpt.environment if plan.nanogpt and plan.ours == "nanogpt" else ""
    return train_command(plan.source, plan.typed, environment=environment, trainer=plan.ours)


def changed_command(change: Fix | Candidate, source: str | None, typed: Mapping[str, Any] | None = None) -> str:
    """The run of a config with a change; `typed` are keys from the command line, which no file holds."""
    patch = {**(typed or {}), **change.patch}
    return train_command(source, patch, environment=change.environment, trainer=change.trainer)


def start_on_cards(plan: Plan, asked: Asked) -> str:
    """The run as it is on several cards: torchrun starts a process for each, on every machine the same line."""
    train = train_command(plan.source, plan.typed, trainer="onecard")
    if asked.ranks.world_size == 1:
        return train
    machines = ""
    if asked.machines > 1:
        machines = f"--nnodes={asked.machines} --rdzv_id=onecard --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 "
    return f"torchrun {machines}--nproc_per_node={asked.per_machine} -m {train}"


def plan_command(
    resolved: Resolved, place: Place | None, asked: Asked | None, patch: Mapping[str, Any] | None = None
) -> str:
    """The same config planned again for the same cards, with a change."""
    source, flags = source_of(resolved), flags_of({**resolved.typed, **(patch or {})})
    words = [
        quote(source) if source else "",
        flags,
        *_place_words(place),
        *(_cards_words(asked, place) if asked else ()),
    ]
    return " ".join(["onecard plan", *filter(None, words)])


def _place_words(place: Place | None) -> Iterator[str]:
    """The card, its size where that was given, and what others hold."""
    if place is None:
        return
    if any(card.name == place.card.name for card in known_cards()):
        yield f"--gpu {quote(place.card.name)}"
    if place.card.vram_source == "--vram":
        yield f"--vram {place.card.vram_bytes / units.MIB:.0f}MiB"
    if place.other_bytes is not None:
        yield f"--other {place.other_bytes / units.MIB:.0f}MiB"


def _cards_words(asked: Asked, place: Place | None) -> Iterator[str]:
    """How many, what links them where that was named, and what they cost."""
    yield f"--gpus {asked.per_machine}"
    if asked.machines > 1:
        yield f"--nodes {asked.machines}"
    for link in asked.links:
        if link.title not in asked.assumed:
            yield f"--interconnect {link.name}"
    for price in asked.prices:
        another = "" if place and price.card == place.card else f"{price.card.name}="
        yield f"--price {quote(f'{another}{price.per_hour:g}')}"
