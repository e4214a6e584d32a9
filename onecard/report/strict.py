"""Values for strict JSON: no NaN, no infinity, text keys, whole numbers of base units."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with null in place of NaN and infinity, and with text keys."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def whole(value: float | None) -> int | None:
    """Bytes, seconds or tokens, rounded to a whole number; None if unknown or not finite."""
    return None if value is None or not math.isfinite(value) else round(value)
