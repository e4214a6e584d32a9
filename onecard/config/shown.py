"""A value of a config as people read it, and as they type it: a size with its unit.

For people it has few digits; in a command to paste it has all of them.
"""

from __future__ import annotations

import math

from onecard import units
from onecard.config.schema import KEYS

DIGITS = 12  # of a number: what lies beyond is what binary arithmetic makes of a tenth


def shown(key: str, value: object) -> str:
    """`0.00012` for 0.00011999999999999999, `12GiB` as it is typed, `not set` for None."""
    if value is None:
        return "not set"
    if value == "":
        return '""'
    if isinstance(value, float):
        return repr(float(f"{value:.{DIGITS}g}"))
    return typed(key, value)


def typed(key: str, value: object) -> str:
    """A value as it is typed after `--key=`: `12GiB` for a size, any other value unchanged."""
    if key in KEYS and "size" in KEYS[key].kind and isinstance(value, int) and value < 2**63:
        return units.as_typed(value)
    return str(value)


def same_value(one: object, other: object) -> bool:
    """Whether two values are the same but for the last bits of a number."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=10.0**-DIGITS)
    return one == other
