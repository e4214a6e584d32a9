"""Tables that fit a narrow terminal: words wrap, figures stay whole."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

LONGEST_FIGURE = 24  # characters; anything longer is a flag or a path


def print_table(table: Table, console: Console) -> None:
    """Print a table. If it is too wide, words wrap, but no figure is cut or broken."""
    for column in table.columns:
        words = [word for cell in column.cells for word in str(cell).split()]
        figures = [len(word) for word in words if any(map(str.isdigit, word)) and len(word) <= LONGEST_FIGURE]
        column.min_width = max(figures, default=0) if column.min_width is None else column.min_width
        column.no_wrap, column.overflow = False, "fold"
    console.print(table, crop=False)
