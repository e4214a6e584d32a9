"""The number type that a run computes in."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card


def with_dtype(config: RunConfig, card: Card | None) -> RunConfig:
    """The config with dtype=auto replaced by what it means on the card."""
    if config.dtype != "auto":
        return config
    return config.replace({"dtype": card.best_dtype() if card else "bfloat16"})
