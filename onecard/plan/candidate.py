"""A config that was tried: its memory, its speed, and what sets it apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onecard import units
from onecard.config.command import EXPANDABLE
from onecard.config.schema import RunConfig
from onecard.models.ways import RECOMPUTATION
from onecard.plan.cards import Card
from onecard.plan.memory.predict import Memory
from onecard.plan.speed import Speed, TrainerName, predict_speed


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config that was tried."""

    config: RunConfig
    patch: dict[str, Any]  # what differs from the config that was asked about
    trainer: TrainerName = "nanogpt"
    expandable_segments: bool = False  # of nanoGPT: asked for in the environment
    process_bytes: int
    error_bytes: int  # how far process_bytes may be off
    fits: bool
    safe: bool  # fits even if it takes error_bytes more
    speed: Speed | None

    @property
    def environment(self) -> str:
        """What stands in front of the command."""
        return EXPANDABLE if self.expandable_segments else ""

    def with_shape(self, shape: Mapping[str, Any]) -> Candidate:
        """The same candidate with these keys of the model in its patch."""
        return replace(self, patch={**shape, **self.patch})

    @property
    def rank(self) -> tuple[float, int, int]:
        """Fastest first; at equal or unknown speed less recomputation, then the larger micro-batch."""
        return rank_of(self.config, self.speed)

    @property
    def settings(self) -> str:
        """`16 x 32 sequences with grad_checkpoint=none`: what sets it apart."""
        config = self.config
        sequences = f"{config.batch_size} x {config.gradient_accumulation_steps} sequences"
        if self.trainer == "onecard":
            return f"{sequences} with grad_checkpoint={config.grad_checkpoint}"
        return f"{sequences} with expandable segments" if self.expandable_segments else sequences

    def advantage_over(self, other: Candidate) -> str:
        """`would be 3.1 % faster`, where speeds are known."""
        if not self.speed or not other.speed:
            return "fits too"
        gain = self.speed.tokens_per_second.likely / other.speed.tokens_per_second.likely - 1
        return f"would be {100 * gain:.1f} % faster" if round(gain, 3) else "would be as fast"

    def risk(self, available_bytes: int) -> str:
        """Why it is not safe, where it fits."""
        left_bytes = available_bytes - self.process_bytes
        if left_bytes < self.error_bytes:
            return f"leaves {units.mib(left_bytes)}, and the prediction may be {units.mib(self.error_bytes)} off"
        return "its first run, which times kernels, may run out of memory"


def rank_of(config: RunConfig, speed: Speed | None) -> tuple[float, int, int]:
    """What sorts configs: the fastest first, then the least recomputation, then the largest micro-batch."""
    likely = speed.tokens_per_second.likely if speed else 0.0
    return likely, -RECOMPUTATION.index(config.grad_checkpoint), config.batch_size


def candidate_of(
    asked: RunConfig,
    config: RunConfig,
    card: Card | None,
    memory: Memory,
    available_bytes: int,
    trainer: TrainerName,
    *,
    expandable: bool = False,
) -> Candidate:
    """A config beside the one that was asked about, with the memory that was predicted for it."""
    return Candidate(
        config=config,
        patch={key: value for key, value in config.model_dump().items() if value != getattr(asked, key)},
        trainer=trainer,
        expandable_segments=expandable,
        process_bytes=memory.process_bytes,
        error_bytes=memory.error_bytes,
        fits=bool(memory.fits),
        safe=memory.is_safe(available_bytes),
        speed=predict_speed(config, card, trainer),
    )
