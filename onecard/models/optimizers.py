"""Optimizers as values: what one keeps for each parameter, and what it moves. Memory, speed, fit and saving read it."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.config.schema import RunConfig

FLOAT = 4  # bytes of a weight, a gradient or a moment


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An update rule. Its state is float32."""

    title: str  # in sentences
    moments: tuple[str, ...]  # tensors of each parameter's shape, by their names in torch
    numbers: tuple[str, ...] = ()  # single numbers of each parameter

    @property
    def held_bytes(self) -> int:
        """Bytes per parameter at every update: weight, gradient and moments."""
        return FLOAT * (2 + len(self.moments))

    @property
    def saved_bytes(self) -> int:
        """Bytes per parameter in a checkpoint: weight and moments."""
        return FLOAT * (1 + len(self.moments))

    @property
    def moved_bytes(self) -> int:
        """Bytes per parameter that a step reads (weight, gradient, moments) and writes (all but the gradient)."""
        return FLOAT * (3 + 2 * len(self.moments))


ADAMW = Optimizer(title="AdamW", moments=("exp_avg", "exp_avg_sq"), numbers=("step",))

OPTIMIZERS = {"adamw": ADAMW}


def optimizer_of(config: RunConfig) -> Optimizer:
    """The optimizer of a run."""
    return OPTIMIZERS[config.optimizer]
