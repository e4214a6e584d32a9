"""The same run on several cards that share every update: memory of one, speed and price of all.

Computed, not measured: nobody has timed it. The model with its formulas is in docs/explain/several-cards.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from onecard.config.schema import RunConfig
from onecard.models.ranks import Ranks
from onecard.models.ways import shards
from onecard.plan.cards import Card
from onecard.plan.interconnects import Interconnect
from onecard.plan.ranges import Range
from onecard.plan.speed import Speed, predict_speed
from onecard.plan.speed.communication import Traffic, gradient_bytes, sum_seconds

# What NCCL was seen to take of a card beside the allocator's memory: groups of 2 and of 4 A100 on NVLink, one sum each
# (NVIDIA/nccl issue 964). More links need more; on PCIe it has fewer channels, so less is likely.
NCCL_BYTES = (544 * 10**6, 688 * 10**6)


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one card costs for an hour, in any currency."""

    card: Card
    per_hour: float


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The cards that were asked for."""

    per_machine: int = 1
    machines: int = 1
    links: tuple[Interconnect, ...] = ()  # within a machine, between machines: those that there are
    assumed: tuple[str, ...] = ()  # links that nobody named
    prices: tuple[Price, ...] = ()

    @property
    def ranks(self) -> Ranks:
        """The first rank, which has the most to do."""
        return Ranks(world_size=self.per_machine * self.machines)

    def links_of(self, cards: int) -> tuple[Interconnect, ...]:
        """What that many of them are linked by: no network where they are in one machine."""
        alone = self.machines > 1 and cards <= self.per_machine
        return tuple(link for link in self.links if not (alone and link.between_machines))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a number of cards trains a run together."""

    speed: Speed  # of one rank with its share, as if alone
    traffic: Traffic | None  # of cards that share a model
    sum_seconds: Range  # in which cards send an update's gradients, and weights that they share
    hidden_seconds: float  # of these, while a card still computes
    tokens_per_second: Range
    step_seconds: Range
    total_seconds: Range


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The run's price on one kind of card."""

    card: Card
    per_hour: float
    fits: bool | None
    total_seconds: Range
    cost: Range


def pace_of(config: RunConfig, card: Card | None, ranks: int, links: tuple[Interconnect, ...]) -> Pace | None:
    """How fast `ranks` such cards train a run; None where the card's speed is unknown."""
    speed = predict_speed(share_of(config, ranks), card, "onecard", ranks=Ranks(world_size=ranks))
    if speed is None:
        return None
    together, traffic = Ranks(world_size=ranks), None
    if shards(together.as_run(config)):
        traffic = Traffic.of(config, ranks)
        sums, hidden = traffic.seconds(links), traffic.hidden_seconds(links, speed.step_seconds.likely)
    else:  # a card waits for the sums: they begin when the backward pass has ended
        summed = 0 if config.eval_only else gradient_bytes(config)
        sums, hidden = sum_seconds(summed, ranks, links), 0.0
    waits = Range(low=max(0.0, sums.low - hidden), likely=sums.likely - hidden, high=sums.high)
    step, rate = speed.step_seconds, speed.tokens_per_second
    if config.eval_only:
        rate = rate.mapped(lambda each: ranks * each)
    elif ranks > 1:
        step = _sum(speed.step_seconds, waits)
        rate = step.mapped(lambda seconds: config.tokens_per_step / seconds)
    updates = 0 if config.eval_only else config.max_iters
    return Pace(
        speed=speed,
        traffic=traffic,
        sum_seconds=sums,
        hidden_seconds=hidden,
        tokens_per_second=rate,
        step_seconds=step,
        total_seconds=_sum(speed.total_seconds, waits.mapped(lambda seconds: updates * seconds)),
    )


def share_of(config: RunConfig, ranks: int) -> RunConfig:
    """What one rank does of a run: its micro-batches of an update, and its batches of an evaluation."""
    if ranks == 1:
        return config
    micros, evaluated = config.gradient_accumulation_steps // ranks, -(-config.eval_iters // ranks)
    return config.replace({"gradient_accumulation_steps": micros, "eval_iters": evaluated})


def _sum(one: Range, other: Range) -> Range:
    return Range(low=one.low + other.low, likely=one.likely + other.likely, high=one.high + other.high)


def worth_up_to(config: RunConfig, card: Card | None, asked: Asked) -> tuple[int | None, bool]:
    """The number of cards past which another brings less than half of itself, and whether no more can share an update.

    One machine is filled before the next begins, and that is full, too. Numbers between which an update cannot be
    divided are passed over: what a card of the next brings is their mean.
    """
    rates: dict[int, float] = {}
    for ranks in _numbers(config.sequences_per_step):
        if asked.machines > 1 and ranks > asked.per_machine and ranks % asked.per_machine:
            continue
        pace = pace_of(divided(config, ranks), card, ranks, asked.links_of(ranks))
        if pace is None:
            return None, False
        rates[ranks] = pace.tokens_per_second.likely
    for fewer, more in pairwise(rates):
        if (rates[more] - rates[fewer]) / (more - fewer) < rates[1] / 2:
            return fewer, False
    return max(rates), True


def _numbers(sequences: int) -> Iterator[int]:
    """The numbers of ranks among which the sequences of an update divide."""
    return (ranks for ranks in range(1, sequences + 1) if sequences % ranks == 0)


def divided(config: RunConfig, ranks: int) -> RunConfig:
    """The same run in micro-batches that divide among the ranks: the largest up to its own."""
    share = config.sequences_per_step // ranks
    size = next(size for size in range(min(config.batch_size, share), 0, -1) if share % size == 0)
    return config if size == config.batch_size else config.in_micro_batches(size)


def cost_of(pace: Pace, price: Price, ranks: int, *, fits: bool | None) -> Cost:
    """What the run costs on such cards, each paid for as long as it takes."""
    return Cost(
        card=price.card,
        per_hour=price.per_hour,
        fits=fits,
        total_seconds=pace.total_seconds,
        cost=pace.total_seconds.mapped(lambda seconds: ranks * price.per_hour * seconds / 3600),
    )
