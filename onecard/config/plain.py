"""Values of other libraries as Python's own: a scalar of numpy or torch, a decimal, a path."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any


def plain(value: object) -> Any:
    """The number, text, bool or None that a value stands for; any other value unchanged."""
    if isinstance(value, str):
        return str.__str__(value)  # an enum's text, not its name
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # item() is what arrays and tensors of one element have; NumPy's bools have nothing else
    for method in ("item", "__index__", "__float__"):
        with suppress(AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError):
            return getattr(value, method)()
    return value
