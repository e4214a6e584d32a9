"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHORTEST_BEGINNING = 4  # letters; fewer begin a name by chance


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The only known word that starts with `word`, else the nearest (hyphens and case do not count); None for none."""
    meant, names = _plain(word), {_plain(name): name for name in known}
    begun = [name for name in names if name.startswith(meant)] if len(meant) >= SHORTEST_BEGINNING else []
    alike = 0.6 if len(meant) >= SHORTEST_BEGINNING else 0.7  # any three letters are much like some name
    near = begun if len(begun) == 1 else difflib.get_close_matches(meant, names, n=1, cutoff=alike)
    return names[near[0]] if near else None


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
