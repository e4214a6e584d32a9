"""Tables on narrow terminals: figures whole, nothing cut, what users typed as they typed it."""

import io
import re

import pytest
from rich.table import Table

import onecard
from onecard.plan.cards import known_cards
from onecard.plan.plan import Plan
from onecard.report.cards import print_cards
from onecard.report.console import PlainConsole
from onecard.report.plan import print_plan
from onecard.report.tables import print_table

CONFIG = {"n_layer": 12, "n_head": 16, "n_embd": 1024, "batch_size": 16, "gradient_accumulation_steps": 32}


def printed(plan: Plan, width: int) -> str:
    console = PlainConsole(width=width, file=io.StringIO())
    print_plan(plan, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def figures(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,]*,\d{3}|\d+\.\d+[MBk]", text))


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize(
    "asked", [{"fit": True, "sensitivity": True}, {"hours": 48}, {"params": 350_000_000, "fit": True}]
)
def test_a_narrow_plan_has_every_figure_of_a_wide_one(asked: dict[str, object], width: int) -> None:
    plan = onecard.make_plan(CONFIG, gpu="RTX 4070", other_bytes=2**31, **asked)  # type: ignore[arg-type]
    wide, narrow = printed(plan, 400), printed(plan, width)
    assert len(figures(wide)) >= 10
    assert figures(wide) - figures(narrow) == set()
    assert "…" not in narrow


def test_the_memory_table_wraps_names_to_forty_columns() -> None:
    shown = printed(onecard.make_plan(CONFIG, gpu="RTX 4070"), 40)
    table = shown[shown.index("\nnanoGPT,") : shown.index("\nwhat to change")]
    assert max(map(len, table.splitlines())) <= 41


def test_every_card_shows_its_memory_at_forty_columns() -> None:
    console = PlainConsole(width=40, file=io.StringIO())
    print_cards(known_cards(), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for card in known_cards():
        assert f"{card.vram_bytes / 2**20:,.0f}" in shown


def test_what_a_user_typed_is_text_not_markup() -> None:
    console = PlainConsole(width=80, file=io.StringIO())
    table = Table()
    table.add_column("name")
    table.add_row("a[/b] [bold]c :smile:")
    print_table(table, console)
    console.print("runs/[/b] [bold]z :smile:")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "a[/b] [bold]c :smile:" in shown
    assert "runs/[/b] [bold]z :smile:" in shown
