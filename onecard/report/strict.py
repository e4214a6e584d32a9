"""A value as JSON has it: no NaN, no infinity, keys that are text; base units that are whole."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with null for numbers that JSON does not have, and keys that are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def whole(value: float | None) -> int | None:
    """Bytes, seconds or tokens to the nearest whole one; None for what is not known or no number."""
    return None if value is None or not math.isfinite(value) else round(value)
