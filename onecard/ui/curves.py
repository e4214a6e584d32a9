"""The updates of a run as curves of few points, in which no spike is lost."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from onecard.ui.columns import Columns

BUCKETS = 500  # of updates, each with its lowest, mean and highest value
SERIES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "allocated_bytes", "reserved_bytes")
WHOLE = ("allocated_bytes", "reserved_bytes")  # whole numbers


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
