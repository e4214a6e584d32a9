"""Tables that fit a narrow terminal: words wrap, figures stay whole."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

LONGEST_FIGURE = 24  # characters; anything longer is a flag or a path


def print_table(table: Table, console: Console) -> None:
    """Print a table. If it is too wide, its cells wrap between words and its columns stand closer; where even the
    longest words do not fit beside each other, words are broken, but never a figure."""
    given, padding = [column.min_width for column in table.columns], table.padding
    for unbroken, table.padding in ((str.strip, padding), (str.strip, (0, 1, 0, 0)), (_has_digit, padding)):
        for column, least in zip(table.columns, given, strict=True):
            words = [word for cell in (column.header, *column.cells) for word in str(cell).split()]
            sizes = [len(word) for word in words if unbroken(word) and len(word) <= LONGEST_FIGURE]
            column.min_width = max(sizes, default=0) if least is None else least
            column.no_wrap, column.overflow = False, "fold"
        _, right, _, left = table.padding
        if sum((column.min_width or 0) + left + right for column in table.columns) <= console.width:
            break
    console.print(table, crop=False)


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))
