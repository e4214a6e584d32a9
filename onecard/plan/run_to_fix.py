"""The run that was asked about: its room, and its memory and speed with changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.fit import is_hopeless
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.speed import TrainerName, predict_speed

ROOMY = 0.9  # a run that takes at most this share of its room needs no fixing


@dataclass(frozen=True, kw_only=True)
class RunToFix:
    """A run under the trainer its user would start."""

    config: RunConfig
    card: Card | None
    trainer: TrainerName
    memory: Memory  # in the room it has
    needed_bytes: int  # what the driver shows for it where there is room enough
    available_bytes: int | None  # what the driver may show for the process; None where no card is known
    expandable_segments: bool = False  # of nanoGPT: its environment asks for them already
    data_tokens: int | None = None  # of its training data

    @property
    def room_bytes(self) -> int | None:
        """The room of a run that has too little; None where it has enough, or no card is known."""
        available = self.available_bytes
        return available if available is not None and self.needed_bytes > ROOMY * available else None

    def memory_with(
        self, patch: Mapping[str, Any], *, expandable_segments: bool = False, returns_logits: bool = True
    ) -> Memory:
        """The memory of the patched run under the same trainer. The switches are nanoGPT's; it has no such keys."""
        config = self.config.replace(patch)
        if self.trainer == "onecard":
            return predict_onecard(config, self.card, available_bytes=self.available_bytes)
        return predict_nanogpt(
            config,
            self.card,
            available_bytes=self.available_bytes,
            expandable_segments=expandable_segments or self.expandable_segments,
            returns_logits=returns_logits,
        )

    def is_safe(self, memory: Memory) -> bool:
        """Whether a run fits even if the prediction is off; True where no card is known."""
        return self.available_bytes is None or memory.is_safe(self.available_bytes)

    def is_safe_with(self, patch: Mapping[str, Any]) -> bool:
        """The same for the patched run, planned only where it is not hopeless."""
        if self.available_bytes is not None and is_hopeless(
            self.config.replace(patch), self.card, self.available_bytes
        ):
            return False
        return self.is_safe(self.memory_with(patch))

    def slowdown(self, config: RunConfig, trainer: TrainerName) -> float | None:
        """How much longer the same tokens take, 0.1 for a tenth; None where no speed is known."""
        before, after = predict_speed(self.config, self.card, self.trainer), predict_speed(config, self.card, trainer)
        return before.tokens_per_second.likely / after.tokens_per_second.likely - 1 if before and after else None


def is_roomy(memory: Memory, available_bytes: int) -> bool:
    """Whether a run leaves a tenth of its room free."""
    return memory.process_bytes <= ROOMY * available_bytes
