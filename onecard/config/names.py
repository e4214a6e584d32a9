"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to `word`, hyphens and case aside; None if nothing is near."""
    return next(iter(difflib.get_close_matches(word.replace("-", "_").lower(), list(known), n=1, cutoff=0.6)), None)
