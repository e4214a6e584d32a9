"""The run on several cards: as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple
from typing import Any

from onecard import units
from onecard.plan.interconnects import Interconnect
from onecard.plan.plan import FittingShare, Plan, SeveralCards
from onecard.plan.ranges import Range
from onecard.plan.several_cards import NCCL_BYTES, Asked, Cost, Pace, divided
from onecard.report.command import plan_command, start_on_cards

Line = tuple[str, str]  # a label, and what it says; an empty label goes on with the line above
COMPUTED = "computed: nobody has measured it"


def cards_lines(several: SeveralCards, plan: Plan) -> Iterator[Line]:
    """How fast, how long, what the cards say to each other, how many are worth it, what it costs."""
    asked, pace = several.asked, several.pace
    yield "cards", _cards_words(several, plan)
    if pace is None:
        yield "speed", "unknown: no card whose speed is known"
    else:
        rate = pace.tokens_per_second
        yield (
            "speed",
            f"{rate.likely / 1000:,.1f}k tokens/s ({rate.low / 1000:,.1f}k to {rate.high / 1000:,.1f}k)"
            f"{f', {_times_words(several)}{COMPUTED}' if asked.ranks.world_size > 1 else ''}",
        )
        low, likely, high = (units.duration(seconds) for seconds in astuple(pace.total_seconds))
        yield "time", f"{likely} ({low} to {high})"
        if asked.ranks.world_size > 1:
            yield "shares" if pace.traffic else "sums", _sums_words(several, pace)
    if several.worth is not None and several.rank.memory.fits is not False:
        yield "worth it", _worth_words(several, plan)
    if several.costs:
        yield "cost", _cost_words(several)


def _times_words(several: SeveralCards) -> str:
    """`1.93 times one card; `; nothing of one card"""
    times = [(several.cards_worth, "one card")] if several.asked.ranks.world_size > 1 else []
    times += [(several.machines_worth, "one machine")]
    said = [f"{worth:.3g} times {what}" for worth, what in times if worth]
    return f"{', '.join(said)}; " if said else ""


def _cards_words(several: SeveralCards, plan: Plan) -> str:
    asked = several.asked
    card = plan.card.name if plan.card else "card"
    many = asked.ranks.world_size
    machines = "" if asked.machines == 1 else f" in {units.things(asked.machines, 'machine')}"
    linked = f", linked by {units.listed(_link_words(several))}" if asked.links else ""
    config = plan.config
    micros = config.gradient_accumulation_steps // many
    reads = f"{micros:,} micro-batch{'' if micros == 1 else 'es'} of {config.batch_size:,} in an update"
    how = "; they share the model, whose blocks run eagerly" if several.pace and several.pace.traffic else ""
    return f"{many:,} x {card}{machines}{linked}{'; each reads ' if many > 1 else ': it reads '}{reads}{how}"


def _link_words(several: SeveralCards) -> list[str]:
    return [
        f"{link.title}{' (assumed)' if link.title in several.asked.assumed else ''}" for link in several.asked.links
    ]


def _sums_words(several: SeveralCards, pace: Pace) -> str:
    low, likely, high = (_short(seconds) for seconds in astuple(pace.sum_seconds))
    waits = pace.sum_seconds.likely - pace.hidden_seconds
    share = f"{waits / pace.step_seconds.likely:.0%} of an update's {_short(pace.step_seconds.likely)}"
    waited = f"{_short(pace.hidden_seconds)} of it while it computes; it waits for the rest, {share}"
    if not pace.hidden_seconds:
        waited = f"for which a card waits: {share}"
    sent = f"{units.size(several.gradient_bytes)} of gradients an update"
    if pace.traffic:
        every = "in each micro-batch weights twice and gradients once"
        sent = f"a card sends {units.size(round(pace.traffic.sent_bytes))} an update, {every},"
    return f"{sent} in {likely} ({low} to {high}), {waited}"


def _short(seconds: float) -> str:
    return units.duration(seconds) if seconds >= 1 else f"{seconds * 1000:,.3g} ms"


def _worth_words(several: SeveralCards, plan: Plan) -> str:
    assert several.worth is not None
    if several.worth_all:
        return f"up to {several.worth:,} cards, as many as this update has sequences"
    size = divided(plan.config, several.worth).batch_size
    smaller = "" if size == plan.config.batch_size else f", in micro-batches of {size:,}"
    machine = ", one machine" if several.machine and several.worth == several.asked.per_machine else ""
    many = units.things(several.worth, "card")
    return f"up to {many}{machine}{smaller}: past that, another brings less than half of itself"


def _cost_words(several: SeveralCards) -> str:
    said = [_one_cost(cost, several.asked.ranks.world_size) for cost in several.costs]
    if len(said) == 1:
        return said[0]
    cheapest = several.cheapest
    which = f"cheapest: {cheapest.card.name}" if cheapest else "it fits none of them"
    return f"{which}. {'; '.join(said)}"


def _one_cost(cost: Cost, ranks: int) -> str:
    price = cost.cost
    fits = "" if cost.fits else ", where it does not fit"
    return (
        f"{cost.card.name} {price.likely:,.2f} ({price.low:,.2f} to {price.high:,.2f}): {ranks} x "
        f"{units.duration(cost.total_seconds.likely)} x {cost.per_hour:g}{fits}"
    )


def cards_details(several: SeveralCards) -> Iterator[str]:
    """Assumptions and sources."""
    low, high = NCCL_BYTES
    if speed := several.rank.speed:
        yield f"a card's own speed: {speed.basis}; nearest measured: {several.rank.nearest_measured}"
    if several.asked.ranks.world_size > 1:
        yield (
            f"NCCL's own buffers are not in a card's figure: {low / 1e6:.0f} to {high / 1e6:.0f} MB were seen with 2 "
            "and 4 A100 on NVLink (NVIDIA/nccl issue 964); less is likely on PCIe"
        )
    for link in several.asked.links:
        share = link.reached
        yield (
            f"{link.title}: {link.bytes_per_second / 1e9:,.4g} GB/s each way ({link.source}), of which sums reach "
            f"{share.likely:.0%} ({share.low:.0%} to {share.high:.0%}): {link.reached_source}"
        )


def several_cards_json(several: SeveralCards, plan: Plan) -> dict[str, Any]:
    """The cards of the contract."""
    asked, pace = several.asked, several.pace
    memory = several.rank.memory
    return {
        "gpus": asked.per_machine,
        "nodes": asked.machines,
        "ranks": asked.ranks.world_size,
        "interconnects": [_link_json(link, several) for link in asked.links],
        "measured": False,
        "fits": memory.fits,
        "process_bytes": memory.process_bytes,
        "error_bytes": memory.error_bytes,
        "nccl_bytes_seen": list(NCCL_BYTES) if asked.ranks.world_size > 1 else None,
        "phases": {name: {"allocated_bytes": phase.allocated_bytes} for name, phase in memory.phases.items()},
        "gradient_bytes": several.gradient_bytes,
        "bytes_sent": round(pace.traffic.sent_bytes) if pace and pace.traffic else None,
        "seconds_of_sums": asdict(pace.sum_seconds) if pace else None,
        "seconds_hidden": pace.hidden_seconds if pace else None,
        "seconds_per_step": asdict(pace.step_seconds) if pace else None,
        "tokens_per_second": _whole(pace.tokens_per_second) if pace else None,
        "seconds_total": round(pace.total_seconds.likely) if pace else None,
        "seconds_total_range": _whole(pace.total_seconds) if pace else None,
        "times_one_card": several.cards_worth,
        "times_one_machine": several.machines_worth,
        "worth_up_to": several.worth,
        "change": None if several.change is None else _change_json(several.change, plan, asked),
        "command": start_on_cards(plan, asked) if plan.fits else None,
        "costs": [_cost_json(cost) for cost in several.costs],
        "cheapest": several.cheapest.card.name if several.cheapest else None,
    }


def _link_json(link: Interconnect, several: SeveralCards) -> dict[str, Any]:
    return {
        "name": link.name,
        "between_machines": link.between_machines,
        "assumed": link.title in several.asked.assumed,
        "bytes_per_second": round(link.bytes_per_second),
        "source": link.source,
        "reached": asdict(link.reached),
        "reached_source": link.reached_source,
    }


def _change_json(change: FittingShare, plan: Plan, asked: Asked) -> dict[str, Any]:
    """What makes the run fit, and what plans it so."""
    rate = change.pace.tokens_per_second.likely if change.pace else None
    return {
        "patch": dict(change.patch),
        "command": plan_command(plan.resolved, plan.place, asked, change.patch),
        "process_bytes": change.rank.memory.process_bytes,
        "tokens_per_second": rate and round(rate),
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    return {
        "gpu": cost.card.name,
        "price_per_hour": cost.per_hour,
        "fits": cost.fits,
        "seconds_total": round(cost.total_seconds.likely),
        "cost": asdict(cost.cost),
    }


def _whole(quantity: Range) -> dict[str, int]:
    return {name: round(value) for name, value in asdict(quantity).items()}
