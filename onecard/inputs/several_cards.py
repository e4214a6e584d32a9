"""The cards that a person asks for -> links and prices that the plan knows."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from shlex import quote
from typing import TYPE_CHECKING

from onecard import units
from onecard.errors import UnknownCard, UsageError

if TYPE_CHECKING:
    from onecard.plan.interconnects import Interconnect
    from onecard.plan.place import Place
    from onecard.plan.several_cards import Asked, Price

MOST_CARDS = 100_000  # more than the largest cluster there is


def cards_asked_for(
    gpus: int | None,
    nodes: int | None,
    interconnects: Sequence[str],
    prices: Sequence[str],
    *,
    place: Place | None,
) -> Asked | None:
    """What was asked for; None for nothing. `prices` are `0.35`, of the planned card, or `RTX 4090=0.35`."""
    from onecard.plan.several_cards import Asked

    if gpus is None and nodes is None and not interconnects and not prices:
        return None
    for option, number in (("--gpus", gpus), ("--nodes", nodes)):
        if number is not None and not 1 <= number <= MOST_CARDS:
            raise UsageError(
                f"{option} {number:,} is not a number of {'cards' if option == '--gpus' else 'machines'}",
                why=f"it takes 1 to {MOST_CARDS:,}",
                fix=f"{option} 2",
                name="bad-cards",
            )
    per_machine, machines = gpus or 1, nodes or 1
    links, assumed = _links(interconnects, per_machine, machines)
    return Asked(
        per_machine=per_machine,
        machines=machines,
        links=links,
        assumed=assumed,
        prices=tuple(_price(price, place) for price in prices),
    )


def _links(names: Sequence[str], per_machine: int, machines: int) -> tuple[tuple[Interconnect, ...], tuple[str, ...]]:
    """The links that there are, within machines and between them, and the titles of those that nobody named."""
    from onecard.plan.interconnects import BETWEEN, WITHIN

    named: dict[bool, Interconnect] = {}
    for name in names:
        link = _link(name)
        _check_needed(link, name, per_machine, machines)
        if named.setdefault(link.between_machines, link) != link:
            between = link.between_machines
            raise UsageError(
                f"{named[between].title} and {link.title} both link {'machines' if between else 'cards in a machine'}",
                why="the plan takes one link within machines and one between them: the slowest sets the pace",
                fix=f"--interconnect {min((named[between], link), key=lambda each: each.bytes_per_second).name}",
                name="two-interconnects",
            )
    needed = [between for between, number in ((False, per_machine), (True, machines)) if number > 1]
    usual = {False: _link(WITHIN), True: _link(BETWEEN)}
    links = tuple(named.get(between, usual[between]) for between in needed)
    return links, tuple(usual[between].title for between in needed if between not in named)


def _link(name: str) -> Interconnect:
    from onecard.config.names import nearest
    from onecard.plan.interconnects import INTERCONNECTS, find_interconnect

    link = find_interconnect(name)
    if link is None:
        known = [each.name for each in INTERCONNECTS]
        meant = nearest(name, known)
        raise UsageError(
            f"{name!r} is not an interconnect whose speed is known",
            why=f"known are {units.listed(known)}",
            fix=f"--interconnect {meant or known[0]}",
            name="unknown-interconnect",
        )
    return link


def _check_needed(link: Interconnect, name: str, per_machine: int, machines: int) -> None:
    """UsageError for a link that links nothing here."""
    if link.between_machines and machines == 1:
        raise UsageError(
            f"{link.title} links machines, and there is one",
            why="within a machine cards talk over PCIe or NVLink",
            fix=f"--nodes 2 --interconnect {quote(name)}",
            name="interconnect-unused",
        )
    if not link.between_machines and per_machine == 1:
        raise UsageError(
            f"{link.title} links cards in one machine, and each machine has one card",
            why="--gpus is the number of cards in each machine; without it there is one",
            fix=f"--gpus 2 --interconnect {quote(name)}",
            name="interconnect-unused",
        )


def _price(text: str, place: Place | None) -> Price:
    """`0.35`, or `RTX 4090=0.35`"""
    from onecard.plan.cards import find_card
    from onecard.plan.several_cards import Price

    name, named, amount = text.rpartition("=")
    try:
        per_hour = float(amount)
    except ValueError:
        per_hour = -1.0
    if not (isfinite(per_hour) and per_hour > 0):
        raise UsageError(
            f"{text!r} is not a price",
            why="--price takes what one card costs for an hour, and before it the card where it is another one",
            fix='--price 0.35 (or --price "RTX 4090=0.35")',
            name="bad-price",
        )
    if named:
        try:
            return Price(card=find_card(name), per_hour=per_hour)
        except UnknownCard as unknown:
            fix = f'--price "{unknown.meant}={amount}"' if unknown.meant else "onecard gpus lists all"
            raise UsageError(unknown.what, why=unknown.why, fix=fix, name=unknown.name) from None
    if place is None:
        raise UsageError(
            f"--price {text} needs a card",
            why="no card is known here, so the hours that are paid for are not known",
            fix=f'--gpu "RTX 4070" --price {text}',
            name="no-card",
        )
    return Price(card=place.card, per_hour=per_hour)
