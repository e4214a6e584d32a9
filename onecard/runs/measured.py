"""What a benchmark measured of one trainer: speed, memory and final loss; and the summary of repeated measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from statistics import mean, median
from typing import Any

from onecard.config.schema import RunConfig
from onecard.models.optimizers import optimizer_of
from onecard.plan.speed.work import TrainerName


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One process: `updates` updates of one trainer. The first ones compile and are not timed."""

    trainer: TrainerName
    batch_size: int
    gradient_accumulation_steps: int
    grad_checkpoint: str
    seed: int
    out_of_memory: bool = False
    step_seconds: tuple[float, ...] = ()  # of the timed updates
    first_step_seconds: float | None = None  # from building the model: an evaluation, compiling, an update
    tokens_per_step: int = 0
    losses: tuple[float, ...] = ()  # of all updates: the mean over micro-batches
    val_loss: float | None = None  # after the last update, on the same windows for all
    val_loss_error: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None  # as the driver shows it; None if it does not
    device: str = ""
    torch: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the median timed update."""
        return self.tokens_per_step / median(self.step_seconds) if self.step_seconds else None

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def from_json(value: dict[str, Any]) -> Measured:
    """The result that a worker process printed."""
    known = {field.name for field in fields(Measured)}
    lists = {key: tuple(item) for key, item in value.items() if isinstance(item, list)}
    return Measured(**{key: item for key, item in (value | lists).items() if key in known})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of all measurements of one trainer and micro-batch. A figure that none of them has is None."""

    trainer: TrainerName
    batch_size: int
    gradient_accumulation_steps: int
    grad_checkpoint: str
    out_of_memory: bool  # in any of them
    tokens_per_second: float | None  # the median of each
    tokens_per_second_each: tuple[float, ...]
    process_bytes: int | None  # the highest
    reserved_bytes: int | None  # the highest
    beyond_state_bytes: int | None  # reserved bytes minus weights, gradients and moments, which every trainer needs
    val_loss: float | None  # the mean of each
    val_loss_each: tuple[float, ...]
    first_step_seconds: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summaries(found: Iterable[Measured], config: RunConfig) -> list[Summary]:
    """A summary of each trainer and micro-batch, by name and size."""
    state_bytes = optimizer_of(config).held_bytes
    ordered = sorted(found, key=_setting)
    return [_summary(list(group), state_bytes) for _, group in groupby(ordered, key=_setting)]


def _setting(one: Measured) -> tuple[str, int]:
    return one.trainer, one.batch_size


def _summary(group: Sequence[Measured], state_bytes: int) -> Summary:
    first = group[0]
    speeds = tuple(one.tokens_per_second for one in group if one.tokens_per_second)
    losses = tuple(one.val_loss for one in group if one.val_loss is not None)
    reserved_bytes = max((one.reserved_bytes for one in group if one.reserved_bytes), default=None)
    return Summary(
        trainer=first.trainer,
        batch_size=first.batch_size,
        gradient_accumulation_steps=first.gradient_accumulation_steps,
        grad_checkpoint=first.grad_checkpoint,
        out_of_memory=any(one.out_of_memory for one in group),
        tokens_per_second=median(speeds) if speeds else None,
        tokens_per_second_each=speeds,
        process_bytes=max((one.process_bytes for one in group if one.process_bytes), default=None),
        reserved_bytes=reserved_bytes,
        beyond_state_bytes=reserved_bytes - state_bytes if reserved_bytes else None,
        val_loss=mean(losses) if losses else None,
        val_loss_each=losses,
        first_step_seconds=tuple(one.first_step_seconds for one in group if one.first_step_seconds),
    )


def speedup(found: Iterable[Summary]) -> float | None:
    """onecard's best tokens per second divided by nanoGPT's best; None if one of them was not measured."""
    best: dict[TrainerName, float] = {}
    for one in found:
        best[one.trainer] = max(best.get(one.trainer, 0.0), one.tokens_per_second or 0.0)
    ours, theirs = best.get("onecard"), best.get("nanogpt")
    return ours / theirs if ours and theirs else None
