"""What a run recorded of its card: the readings that can be believed, and what a state of the card costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from onecard import units
from onecard.doctor.case import Case
from onecard.doctor.facts import plain_steps
from onecard.runs.records import CardReading, Record, Start

LEAST = 5  # readings of a state, 25 seconds: one or two prove nothing
SELDOM = 0.05  # of the readings, below which nothing is said
ENOUGH = 20  # readings of one start of the run, to judge it rather than the one before
AT_WORK = 0.5  # a card that is busy for less of the time lowers its clocks and its link, as it should
ERRORS = 3.0  # standard errors by which updates must differ to call it a cost
# What a sensor can show at most; a record with another figure is not believed.
_POSSIBLE = {
    "temperature_c": (1, 150),
    "power_watts": (0, 2_000),
    "power_limit_watts": (1, 2_000),
    "default_power_limit_watts": (1, 2_000),
    "sm_clock_mhz": (1, 10_000),
    "memory_clock_mhz": (1, 50_000),
    "busy": (0, 1),
    "other_bytes": (0, 2**42),
    "other_busy": (0, 1),
    "pcie_generation": (1, 10),
    "pcie_width": (1, 64),
    "max_pcie_generation": (1, 10),
    "max_pcie_width": (1, 64),
}
Readings = Sequence[CardReading]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The card of one rank, in the last start of the run that lasted long enough."""

    name: str  # "the card", or "the card of rank 3"
    readings: tuple[CardReading, ...]  # believed, and taken while the card worked


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How much slower updates were in some readings than in the others."""

    share: float  # of the speed, 0 to 1; 0.0 where the difference is no more than noise
    tokens_per_second: float | None  # None where the tokens of an update are not known

    def __str__(self) -> str:
        if not self.share:
            return "updates are not slower for it"
        tokens = f" ({units.count(self.tokens_per_second)} tokens/s)" if self.tokens_per_second else ""
        return f"it costs {self.share:.0%} of the speed{tokens}"


def watched(case: Case) -> Iterator[Watched]:
    """Each card of a run, by rank."""
    part = _last_part(case.run.records)
    ranks = sorted({reading.rank or 0 for reading in part})
    for rank in ranks:
        name = "the card" if len(ranks) == 1 else f"the card of rank {rank}"
        yield Watched(name=name, readings=tuple(each for each in part if (each.rank or 0) == rank))


def believed(records: Sequence[Record]) -> list[CardReading]:
    """The readings with possible figures that were taken while the card worked."""
    return [record for record in records if isinstance(record, CardReading) and _possible(record) and _at_work(record)]


def _last_part(records: Sequence[Record]) -> list[CardReading]:
    """The readings since the last start; where they are few, since the last start with enough of them, until the next.

    A resume may be on another card, or on one that has been repaired.
    """
    starts = [0, *(number for number, record in enumerate(records) if isinstance(record, Start)), len(records)]
    parts = [believed(records[first:after]) for first, after in pairwise(starts)]
    long = [part for part in parts if len(part) >= ENOUGH]
    return long[-1] if long else max(parts, key=len)


def _possible(reading: CardReading) -> bool:
    figures = ((getattr(reading, name), least, most) for name, (least, most) in _POSSIBLE.items())
    return reading.step >= 0 and all(figure is None or least <= figure <= most for figure, least, most in figures)


def _at_work(reading: CardReading) -> bool:
    """As the card says, else as its power shows; where neither is told, as the run says, which reads it in updates."""
    if reading.busy is not None:
        return reading.busy >= AT_WORK
    if reading.power_watts is not None and reading.power_limit_watts:
        return reading.power_watts >= AT_WORK * reading.power_limit_watts
    return True


def known(readings: Readings, name: str) -> list[float]:
    """The values of a figure, where it was told."""
    return [value for reading in readings if (value := getattr(reading, name)) is not None]


def usual(readings: Readings, name: str) -> float | None:
    """The median of a figure; None where it was not told."""
    values = known(readings, name)
    return median(values) if values else None


def parted(readings: Readings, told: str, state: Callable[[CardReading], bool]) -> tuple[Readings, Readings]:
    """The readings in a state and the others, of those that tell a figure."""
    telling = [reading for reading in readings if getattr(reading, told) is not None]
    return [each for each in telling if state(each)], [each for each in telling if not state(each)]


def slowed_by(*reasons: str) -> Callable[[CardReading], bool]:
    """Whether a reading gives one of these reasons for a lower clock."""
    return lambda reading: bool(set(reasons) & set(reading.throttle or ()))


def cost(case: Case, affected: Readings, others: Readings) -> Cost | None:
    """What the updates during some readings take longer than those during others; None where the records cannot tell:
    the card was always so, or nearly."""
    seconds = {step.step: step.seconds for step in plain_steps(case.run, case.resolved, case.steps, case.evals)}
    slow, fast = ([seconds[each.step] or 0.0 for each in group if each.step in seconds] for group in (affected, others))
    if min(len(slow), len(fast)) < LEAST:
        return None
    usual_slow, usual_fast = median(slow), median(fast)
    lost = usual_slow - usual_fast
    if lost <= 0 or lost < ERRORS * math.hypot(_error(slow), _error(fast)):
        return Cost(share=0.0, tokens_per_second=None)
    tokens = case.facts.tokens_per_step
    difference = tokens / usual_fast - tokens / usual_slow if tokens else None
    return Cost(share=lost / usual_slow, tokens_per_second=difference)


def _error(values: Sequence[float]) -> float:
    """The standard error of a median, from the scatter of the values."""
    middle = median(values)
    return 1.2533 * 1.4826 * median(abs(value - middle) for value in values) / math.sqrt(len(values))


def shown(reading: CardReading) -> str:
    """A reading as evidence: `step 1,200: 87 °C, 198 of 200 W, 1,905 MHz, slowed by heat`."""
    said = [f"{reading.temperature_c:.0f} °C"] if reading.temperature_c is not None else []
    if reading.power_watts is not None:
        limit = f" of {reading.power_limit_watts:.0f}" if reading.power_limit_watts is not None else ""
        said.append(f"{reading.power_watts:.0f}{limit} W")
    if reading.sm_clock_mhz is not None:
        said.append(f"{reading.sm_clock_mhz:,.0f} MHz")
    if reading.throttle:
        said.append(f"slowed by {' and '.join(reading.throttle)}")
    return f"step {reading.step:,}: " + (", ".join(said) or "a reading of the card")


def in_words(records: Sequence[Record]) -> str | None:
    """What the card usually showed, in one sentence; None without readings."""
    readings = believed(records)
    if not readings:
        return None
    celsius, watts, limit, clock = (
        usual(readings, name) for name in ("temperature_c", "power_watts", "power_limit_watts", "sm_clock_mhz")
    )
    said = [f"{celsius:.0f} °C"] if celsius is not None else []
    if watts is not None:
        said.append(f"{watts:.0f} W" + (f" of its limit of {limit:.0f} W" if limit is not None else ""))
    if clock is not None:
        said.append(f"{clock:,.0f} MHz")
    return f"the card usually showed {', '.join(said)} ({units.things(len(readings), 'reading')})" if said else None


def slowed_in_words(readings: Readings) -> str | None:
    """What slowed the card down for more than a moment; None if nothing did but its power limit, which is usual."""
    telling = [reading for reading in believed(readings) if reading.throttle is not None]
    reasons = Counter(reason for each in telling for reason in each.throttle or () if reason != "power limit")
    reason, times = max(reasons.items(), key=lambda pair: pair[1], default=("", 0))
    if times < max(LEAST, SELDOM * len(telling)):
        return None
    hottest = max(known(telling, "temperature_c"), default=None)
    at = f", at {hottest:.0f} °C at most" if hottest is not None else ""
    return f"the card was slowed by {reason} in {times:,} of {len(telling):,} readings{at}"
