"""What each setting does to memory: the same run re-planned with one thing halved, doubled or switched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.memory.predict import predict_memory
from onecard.plan.pretrained import OF_WEIGHTS
from onecard.plan.speed import TrainerName

SCALED = ("batch_size", "block_size", "n_embd", "n_layer", "vocab_size")
SWITCHED: dict[str, tuple[Any, ...]] = {"dtype": ("bfloat16", "float16", "float32"), "compile": (True, False)}
OUR_SWITCHES: dict[str, tuple[Any, ...]] = {"grad_checkpoint": ("none", "selective", "full")}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One changed setting and the memory it leads to."""

    key: str
    value: Any
    process_bytes: int
    difference_bytes: int  # against the config as it is


def single_changes(config: RunConfig, card: Card | None, trainer: TrainerName = "nanogpt") -> list[Change]:
    """Every single change with what the driver would show, in the order of the keys."""
    switched = SWITCHED | (OUR_SWITCHES if trainer == "onecard" else {})
    base = predict_memory(config, card, trainer).process_bytes
    changes = []
    for key, value, changed in _neighbours(config, switched):
        process = predict_memory(changed, card, trainer).process_bytes
        changes.append(Change(key=key, value=value, process_bytes=process, difference_bytes=process - base))
    return changes


def _neighbours(config: RunConfig, switched: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any, RunConfig]]:
    steps: list[tuple[str, Any]] = []
    for key in SCALED:
        if config.starts_pretrained and key in OF_WEIGHTS:
            continue  # given with the weights
        value = getattr(config, key)
        steps += [(key, value // 2), (key, value * 2)]
    for key, values in switched.items():
        steps += [(key, value) for value in values if value != getattr(config, key)]
    for key, value in steps:
        try:
            yield key, value, config.replace({key: value})
        except ValidationError:
            continue  # a width the heads do not divide, or half of one: there is no such run
