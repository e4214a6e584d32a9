"""A prediction is a range: a bare number claims more than we know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Range:
    """The range in which a quantity will probably be."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.likely <= self.high, self

    def __str__(self) -> str:
        """`3.35 (3.24 to 3.46)`"""
        return f"{self.likely:.2f} ({self.low:.2f} to {self.high:.2f})"

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def at_most(self, bound: float) -> Range:
        """The same range, cut at an upper bound."""
        return Range(low=min(self.low, bound), likely=min(self.likely, bound), high=min(self.high, bound))

    def mapped(self, function: Callable[[float], float]) -> Range:
        """The range of a monotonic function of this quantity."""
        low, likely, high = function(self.low), function(self.likely), function(self.high)
        return Range(low=min(low, high), likely=likely, high=max(low, high))


def around(likely: float, spread: float) -> Range:
    """likely ± spread, in the same unit."""
    return Range(low=likely - spread, likely=likely, high=likely + spread)


def within(likely: float, share: float) -> Range:
    """likely ± a fraction of it: 0.2 is ±20 %."""
    return Range(low=likely * (1 - share), likely=likely, high=likely * (1 + share))
