"""The updates of a run as curves of few points, in which no spike is lost."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onecard.ui.columns import Columns, Reading

BUCKETS = 500  # of updates, each with its lowest, mean and highest value
SERIES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "allocated_bytes", "reserved_bytes")
WHOLE = ("allocated_bytes", "reserved_bytes")  # whole numbers
OF_A_CARD = ("temperature_c", "power_watts", "sm_clock_mhz", "other_bytes")
LIMITS = (
    *("power_limit_watts", "default_power_limit_watts"),
    *("pcie_generation", "pcie_width", "max_pcie_generation", "max_pcie_width"),
)


def curves(columns: Columns, *, first: int | None = None, last: int | None = None) -> dict[str, Any]:
    """The updates from `first` to `last` in at most BUCKETS buckets; every extreme of a bucket is kept."""
    begin = 0 if first is None else bisect_left(columns.step, first)
    end = len(columns) if last is None else bisect_right(columns.step, last)
    shown = columns.part(begin, end)
    count = min(BUCKETS, len(shown))
    cuts = [len(shown) * number // count for number in range(count + 1)] if count else [0]
    ends = [cut - 1 for cut in cuts[1:]]
    losses = shown.values["loss"]
    return {
        "from": shown.step[0] if shown else None,
        "to": shown.step[-1] if shown else None,
        "steps": len(shown),
        "buckets": count,
        "step": [shown.step[place] for place in ends],
        "tokens": [_whole(shown.values["tokens"][place]) for place in ends],
        "seconds": [_finite(shown.values["elapsed_seconds"][place]) for place in ends],
        "not_finite": [number for number in range(count) if not _all_finite(losses[cuts[number] : cuts[number + 1]])],
        **{name: _series(shown.values[name], cuts, whole=name in WHOLE) for name in SERIES},
    }


def card_curves(readings: Sequence[Reading], shown: dict[str, Any]) -> dict[str, Any]:
    """The readings of a card in the same buckets as the updates `shown`, those of all ranks together."""
    ends, first = shown["step"], shown["from"]
    places: list[list[Reading]] = [[] for _ in ends]
    for reading in readings:
        place = bisect_left(ends, reading.step)
        if place < len(ends) and reading.step >= first:
            places[place].append(reading)
    return {name: _told([[getattr(each, name) for each in some] for some in places]) for name in OF_A_CARD}


def _told(places: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]] | None:
    known = [[value for value in some if value is not None] for some in places]
    if not any(known):
        return None
    return {
        "min": [min(some, default=None) for some in known],
        "mean": [round(math.fsum(some) / len(some), 1) if some else None for some in known],
        "max": [max(some, default=None) for some in known],
    }


def sensors(readings: Sequence[Reading]) -> dict[str, Any] | None:
    """What the readings of a card tell beside their curves: how often its clock was lowered, and why; its limits."""
    if not readings:
        return None
    told = [reading.throttle for reading in readings if reading.throttle is not None]
    reasons = Counter(reason for some in told for reason in set(some))
    slowed = {reason: count / len(told) for reason, count in reasons.most_common()} if told else None
    return {"slowed": slowed} | {
        name: next((value for each in reversed(readings) if (value := getattr(each, name)) is not None), None)
        for name in LIMITS
    }


def _series(values: array[float], cuts: Sequence[int], *, whole: bool) -> dict[str, list[float | None]] | None:
    """Lowest, mean and highest of every bucket; None where nobody recorded any."""
    made: dict[str, list[float | None]] = {"min": [], "mean": [], "max": []}
    if all(map(math.isnan, values)):
        return None
    shown = _whole if whole else _finite
    for number in range(len(cuts) - 1):
        part: Sequence[float] = values[cuts[number] : cuts[number + 1]]
        if not _all_finite(part):
            part = [value for value in part if math.isfinite(value)]
        made["min"].append(shown(min(part, default=math.nan)))
        made["mean"].append(math.fsum(part) / len(part) if part else None)
        made["max"].append(shown(max(part, default=math.nan)))
    return made


def _all_finite(values: Sequence[float]) -> bool:
    return math.isfinite(sum(values))  # a sum is NaN or infinite where one of its numbers is


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None
