"""What each setting does to memory: the same run re-planned with one thing halved, doubled or switched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.memory.predict import predict_memory
from onecard.plan.pretrained import OF_WEIGHTS
from onecard.plan.speed import TrainerName

SCALED = ("batch_size", "block_size", "n_embd", "n_layer", "vocab_size")
SWITCHED: dict[str, tuple[Any, ...]] = {"dtype": ("bfloat16", "float16", "float32"), "compile": (True, False)}
OUR_SWITCHES: dict[str, tuple[Any, ...]] = {"grad_checkpoint": ("none", "selective", "full")}

Trainers = TrainerName | Literal["both"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One changed setting and the memory it leads to."""

    trainer: TrainerName
    key: str
    value: Any
    process_bytes: int
    difference_bytes: int  # against the config as it is


def single_changes(config: RunConfig, card: Card | None, trainer: Trainers = "nanogpt") -> list[Change]:
    """Every single change with what the driver would show, in the order of the keys.

    For both trainers: nanoGPT's run, then what only onecard has a key for.
    """
    if trainer == "both":
        return [
            *_changes(config, card, "nanogpt", SWITCHED),
            *_changes(config, card, "onecard", OUR_SWITCHES, scaled=()),
        ]
    return _changes(config, card, trainer, SWITCHED | (OUR_SWITCHES if trainer == "onecard" else {}))


def _changes(
    config: RunConfig,
    card: Card | None,
    trainer: TrainerName,
    switched: Mapping[str, tuple[Any, ...]],
    *,
    scaled: tuple[str, ...] = SCALED,
) -> list[Change]:
    base = predict_memory(config, card, trainer).process_bytes
    changes = []
    for key, value, changed in _neighbours(config, scaled, switched):
        process = predict_memory(changed, card, trainer).process_bytes
        difference = process - base
        changes.append(
            Change(trainer=trainer, key=key, value=value, process_bytes=process, difference_bytes=difference)
        )
    return changes


def _neighbours(
    config: RunConfig, scaled: tuple[str, ...], switched: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[str, Any, RunConfig]]:
    steps: list[tuple[str, Any]] = []
    for key in scaled:
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
            continue  # the heads do not divide this width: no such run exists
