"""What a benchmark measured of one trainer: speed, memory, and the loss it reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Literal

TrainerName = Literal["nanogpt", "onecard"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One process: `updates` updates of one trainer, the first ones (compiling) not timed."""

    trainer: TrainerName
    batch_size: int
    gradient_accumulation_steps: int
    grad_checkpoint: str
    seed: int
    out_of_memory: bool = False
    step_seconds: tuple[float, ...] = ()  # of the timed updates
    first_step_seconds: float | None = None  # from the model's making to the end of the first update, compile included
    tokens_per_step: int = 0
    losses: tuple[float, ...] = ()  # of all updates: the mean over micro-batches
    val_loss: float | None = None  # after the last update, on the same windows for all
    val_loss_error: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None  # what the driver shows; None where it does not say
    device: str = ""
    torch: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        """Of the median timed update."""
        return self.tokens_per_step / median(self.step_seconds) if self.step_seconds else None

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def from_json(value: dict[str, Any]) -> Measured:
    """The result a worker printed."""
    known = {field.name for field in fields(Measured)}
    lists = {key: tuple(item) for key, item in value.items() if isinstance(item, list)}
    return Measured(**{key: item for key, item in (value | lists).items() if key in known})
