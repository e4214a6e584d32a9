"""What can be asked of a plan at once, and the budget that was typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onecard import units
from onecard.errors import UsageError

if TYPE_CHECKING:
    from onecard.plan.budget import Budget

BUDGETS = ("hours", "tokens")
ABOUT_CARDS = ("gpus", "nodes", "interconnect", "price")
OF_ONE_CONFIG = (
    "params",
    "sensitivity",
    "explain",
    "seen",
    "nvidia_smi",
    "timeline",
    *ABOUT_CARDS,
)
MOST_HOURS = 100_000  # eleven years
MOST_TOKENS = 10**15  # more text than exists


def check_questions(asked: Mapping[str, str], *, apart: Callable[[str, str], str]) -> None:
    """UsageError where two questions exclude each other; `asked` has the name of each as the user typed it.

    `apart` gives what to do instead, for the names of a budget and of a question that it excludes.
    """
    budget, beside = (next((name for name in names if name in asked), None) for names in (BUDGETS, OF_ONE_CONFIG))
    if budget and beside:
        raise UsageError(
            f"{asked[beside]} does not go with {asked[budget]}",
            why=f"{asked[budget]} proposes new configs, and {asked[beside]} is about the config you have",
            fix=apart(budget, beside),
            name="two-questions",
        )


def budget_of(*, hours: float | None, tokens: int | None) -> Budget | None:
    """The budget that was typed; None for none, UsageError where it is not an amount to spend."""
    from onecard.plan.budget import Budget

    for option, amount, most, example in (("--hours", hours, MOST_HOURS, 48), ("--tokens", tokens, MOST_TOKENS, "10B")):
        if amount is not None and not 0 < amount <= most:  # false for nan, too
            raise UsageError(
                f"{option} {amount:g} is not a budget",
                why=f"{option} takes more than 0 and at most {units.count(most)}",
                fix=f"{option} {example}",
                name="bad-budget",
            )
    if hours is None and tokens is None:
        return None
    return Budget(seconds=None if hours is None else hours * 3600, tokens=tokens)
