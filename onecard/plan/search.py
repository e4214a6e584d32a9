"""Finds the largest of many ways that fits. A rough estimate gives the start, so only a few ways must be planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onecard.config.schema import RunConfig
from onecard.models.chunks import CHUNK_BYTES
from onecard.models.optimizers import optimizer_of
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.speed import TrainerName

T = TypeVar("T")


def largest(ways: Sequence[T], fits: Callable[[T], bool], *, start: int) -> T | None:
    """The last way that fits, if `ways` are sorted by the memory they need; None if no way fits.

    The search begins at index `start` in steps that double, then bisects. From a good start it tries only two ways.
    """
    low, high = -1, len(ways)
    at, stride = max(0, min(start, high - 1)), 1
    while high - low > 1:
        low, high = (at, high) if fits(ways[at]) else (low, at)
        if low > -1 and high < len(ways):
            at = (low + high) // 2
        else:
            at = min(low + stride, high - 1) if low > -1 else max(high - stride, 0)
            stride *= 2
    return ways[low] if low >= 0 else None


def start_of_search(ways: Sequence[RunConfig], card: Card | None, available_bytes: int, trainer: TrainerName) -> int:
    """The index of the way to try first, in `ways` sorted by memory: the last that fits by a rough estimate."""
    room_bytes = available_bytes - (card.context_bytes if card else 0)
    return sum(_rough_bytes(way, trainer) <= room_bytes for way in ways) - 1


# Bytes kept in half precision per token, n_layer and n_embd; and bytes per logit under nanoGPT. They were read off
# predictions for 40M to 774M parameters and agree with them within 25 %.
_KEPT_BYTES = {"none": 34, "selective": 20, "full": 4}
_LOGIT_BYTES = 7
_CAST_BYTES = 2  # per parameter


def _rough_bytes(config: RunConfig, trainer: TrainerName) -> float:
    """About how many bytes PyTorch reserves for a run."""
    tokens, wide = config.batch_size * config.block_size, 2 if config.dtype == "float32" else 1
    kept = _KEPT_BYTES[config.grad_checkpoint if trainer == "onecard" else "none"] * config.n_embd * config.n_layer
    logits = tokens * config.vocab_size * _LOGIT_BYTES
    if trainer == "onecard":
        logits = min(tokens * config.vocab_size * 2, CHUNK_BYTES)
    state = optimizer_of(config).held_bytes + _CAST_BYTES * count_params(config).total
    return state + wide * (tokens * kept + logits)
