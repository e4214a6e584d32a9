"""How much of the longest tests runs: a tenth in `make test`, all of it in `make test-all`, which sets the variable."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("ONECARD_TESTS") == "whole"


def share(count: int, *, least: int = 8) -> int:
    """A tenth of `count` cases that are made with a fixed seed, but no fewer than `least`; or all of them."""
    return count if WHOLE else min(count, max(least, count // 10))


def every_tenth(cases: Sequence[T]) -> Sequence[T]:
    """About a tenth of `cases`, or all of them.

    Every eleventh: where the cases are combinations of two to ten values, each value comes up.
    """
    return cases if WHOLE else cases[::11]
