"""What each setting does to memory: the same run re-planned with one thing halved, doubled or switched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from onecard.config.schema import RunConfig
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.ways import recomputations
from onecard.plan.cards import Card
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.pretrained import OF_WEIGHTS
from onecard.plan.speed import TrainerName
from onecard.plan.speed.work import Trainers

SCALED = ("batch_size", "block_size", "n_embd", "n_layer", "vocab_size")
SWITCHED: dict[str, tuple[Any, ...]] = {"dtype": ("bfloat16", "float16", "float32"), "compile": (True, False)}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One changed setting and the memory it leads to."""

    trainer: TrainerName
    key: str
    value: Any
    process_bytes: int
    difference_bytes: int  # against the config as it is


def single_changes(
    config: RunConfig,
    card: Card | None,
    trainer: Trainers = "nanogpt",
    *,
    expandable_segments: bool = False,
    ranks: Ranks = ONE_RANK,
) -> list[Change]:
    """Every single change with what the driver would show, in the order of the keys.

    For both trainers: nanoGPT's run, then what only onecard has a key for. `expandable_segments` are nanoGPT's, and of
    several ranks that share the run under onecard the memory is one's.
    """

    def nanogpt(changed: RunConfig) -> int:
        return predict_nanogpt(changed, card, expandable_segments=expandable_segments).process_bytes

    def onecard(changed: RunConfig) -> int:
        return predict_onecard(changed, card, ranks=ranks).process_bytes

    ours: dict[str, tuple[Any, ...]] = {"grad_checkpoint": recomputations(config)}
    if ranks.world_size > 1:
        ours["shard"] = ("none", "full")
    match trainer:
        case "nanogpt":
            return _changes(config, "nanogpt", nanogpt, SWITCHED)
        case "onecard":
            return _changes(config, "onecard", onecard, SWITCHED | ours)
        case "both":
            theirs = _changes(config, "nanogpt", nanogpt, SWITCHED)
            return [*theirs, *_changes(config, "onecard", onecard, ours, scaled=())]


def _changes(
    config: RunConfig,
    trainer: TrainerName,
    process_bytes: Callable[[RunConfig], int],
    switched: Mapping[str, tuple[Any, ...]],
    *,
    scaled: tuple[str, ...] = SCALED,
) -> list[Change]:
    before = process_bytes(config)
    changes = []
    for key, value, changed in _neighbours(config, scaled, switched):
        after = process_bytes(changed)
        changes.append(
            Change(trainer=trainer, key=key, value=value, process_bytes=after, difference_bytes=after - before)
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
