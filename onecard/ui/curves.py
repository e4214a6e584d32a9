"""The records of updates as curves of few points, in which no spike is lost."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from onecard.runs.records import Step

BUCKETS = 500  # of updates, each with its lowest, mean and highest value
SERIES = ("loss", "lr", "grad_norm", "mfu", "allocated_bytes", "reserved_bytes")


def curves(
    steps: Sequence[Step],
    *,
    first: int | None = None,
    last: int | None = None,
    speed: Callable[[Step], float | None] = attrgetter("tokens_per_second"),
) -> dict[str, Any]:
    """The updates from `first` to `last` in at most BUCKETS buckets; every extreme of a bucket is kept."""
    numbers = [step.step for step in steps]
    begin = 0 if first is None else bisect_left(numbers, first)
    end = len(steps) if last is None else bisect_right(numbers, last)
    shown = steps[begin:end]
    count = min(BUCKETS, len(shown))
    cuts = [len(shown) * number // count for number in range(count + 1)] if count else [0]
    ends = [shown[cut - 1] for cut in cuts[1:]]
    losses = [step.loss for step in shown]
    return {
        "from": shown[0].step if shown else None,
        "to": shown[-1].step if shown else None,
        "steps": len(shown),
        "buckets": count,
        "step": [step.step for step in ends],
        "tokens": [step.tokens for step in ends],
        "seconds": [step.elapsed_seconds for step in ends],
        "not_finite": [number for number in range(count) if not all(map(math.isfinite, _in(losses, cuts, number)))],
        **{name: _series([getattr(step, name) for step in shown], cuts) for name in SERIES},
        "tokens_per_second": _series([speed(step) for step in shown], cuts),
    }


def _in(values: Sequence[Any], cuts: Sequence[int], number: int) -> Sequence[Any]:
    return values[cuts[number] : cuts[number + 1]]


def _series(values: Sequence[float | None], cuts: Sequence[int]) -> dict[str, list[float | None]] | None:
    """Lowest, mean and highest of every bucket; None where nobody recorded any."""
    made: dict[str, list[float | None]] = {"min": [], "mean": [], "max": []}
    if all(value is None for value in values):
        return None
    for number in range(len(cuts) - 1):
        known = [value for value in _in(values, cuts, number) if value is not None and math.isfinite(value)]
        made["min"].append(min(known, default=None))
        made["mean"].append(math.fsum(known) / len(known) if known else None)
        made["max"].append(max(known, default=None))
    return made
