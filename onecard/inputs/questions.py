"""What can be asked of a plan at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onecard.errors import UsageError

BUDGETS = ("hours", "tokens")
OF_ONE_CONFIG = ("params", "sensitivity", "explain", "seen", "nvidia_smi", "timeline")


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
