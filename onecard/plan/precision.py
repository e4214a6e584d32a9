"""The number type that a run computes in, and whether its card can compile it."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card

OLDEST_OF_TRITON = (7, 0)  # compute capability; torch.compile makes Triton kernels


def compiles(card: Card | None) -> bool:
    """Whether torch.compile runs on the card; other makers have their own Triton."""
    return card is None or card.compute_capability is None or card.compute_capability >= OLDEST_OF_TRITON


def with_dtype(config: RunConfig, card: Card | None) -> RunConfig:
    """The config with dtype=auto replaced by what it means on the card, and not compiled where the card cannot."""
    if config.compile and not compiles(card):
        config = config.replace({"compile": False})
    if config.dtype != "auto":
        return config
    return config.replace({"dtype": card.best_dtype() if card else "bfloat16"})
