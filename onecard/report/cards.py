"""The card table as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.plan.cards import Card
from onecard.report.tables import print_table

SCHEMA = 1


def cards_json(cards: Iterable[Card]) -> dict[str, Any]:
    return {"schema": SCHEMA, "gpus": [_card_json(card) for card in cards]}


def _card_json(card: Card) -> dict[str, Any]:
    capability = card.compute_capability
    figures = {
        "compute_capability": (f"{capability[0]}.{capability[1]}" if capability else None, card.specification_source),
        "multiprocessors": (card.multiprocessors, card.specification_source),
        "vram_bytes": (card.vram_bytes, card.vram_source),
        "allocatable_bytes": (card.allocatable_bytes, card.allocatable_source),
        "context_bytes": (card.context_bytes, card.context_source),
        "bandwidth_bytes_per_second": (card.bandwidth_bytes_per_second, card.specification_source),
        "peak_flops": (card.peak_flops, card.peak_source),
        "fp32_flops": (card.fp32_flops, card.specification_source),
        "native_bf16": (card.native_bf16, card.bf16_source),
    }
    return {
        "name": card.name,
        "architecture": card.architecture,
        **{name: figure for name, (figure, _) in figures.items()},
        "sources": {name: source for name, (figure, source) in figures.items() if figure is not None},
    }


def print_cards(cards: Sequence[Card], console: Console) -> None:
    """Print the card table; estimates are marked ~."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("card")
    for heading in ("driver MiB", "torch GiB", "GB/s", "TFLOP/s", "cc", "bf16"):
        table.add_column(heading, justify="right")
    table.add_column("peak from", overflow="fold")
    for card in cards:
        capability = card.compute_capability
        table.add_row(
            card.name,
            _marked(f"{card.vram_bytes / units.MIB:,.0f}", card.vram_source),
            _marked(f"{card.allocatable_bytes / units.GIB:.2f}", card.allocatable_source),
            _marked(f"{(card.bandwidth_bytes_per_second or 0) / 1e9:,.0f}", card.specification_source),
            _marked(f"{(card.peak_flops or 0) / 1e12:,.1f}", card.peak_source),
            f"{capability[0]}.{capability[1]}" if capability else "-",
            _marked("yes" if card.native_bf16 else "no", card.bf16_source),
            card.peak_source.removeprefix("estimate: "),
        )
    print_table(table, console)
    console.print(Text("~ marks an estimate; --json gives the source of every figure", style="dim"))


def _marked(figure: str, source: str) -> str:
    return f"~{figure}" if source.startswith("estimate") else figure
