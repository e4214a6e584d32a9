"""The positions of the marks on an axis."""

from __future__ import annotations

import math


def round_values(low: float, high: float, *, about: int = 5) -> list[float]:
    """About five round numbers between two bounds."""
    raw = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= raw * 0.999)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
