"""Records with what a test asks for, and little else known."""

from dataclasses import fields
from typing import Any, TypeVar

from onecard.runs.records import CardReading, End, Eval, Oom, Start, Step

T = TypeVar("T", Start, Step, Eval, Oom, End)


def _bare(kind: type[T], **known: Any) -> T:
    return kind(**({item.name: None for item in fields(kind) if item.name != "more"} | known))


def start(number: int, *, resumed_from: str | None = "checkpoints/step") -> Start:
    return _bare(Start, step=number, config={"n_layer": 2}, versions={}, device="cpu", resumed_from=resumed_from)


def step(number: int, *, loss: float = 3.0, **known: Any) -> Step:
    return _bare(Step, step=number, tokens=512 * number, loss=loss, **known)


def evaluation(number: int, *, val_loss: float = 3.0, block_size: int = 64) -> Eval:
    return _bare(Eval, step=number, val_loss=val_loss, block_size=block_size)


def end(number: int, reason: str = "interrupted") -> End:
    return _bare(End, step=number, reason=reason)


def oom(number: int) -> Oom:
    return _bare(Oom, step=number, where="train", batch_size_before=8, message="out of memory")


def card_reading(number: int, **known: Any) -> CardReading:
    """A card at work and in good health, at its power limit, as large products bring it there."""
    healthy = {
        "rank": 0,
        "elapsed_seconds": 5.0 * number,
        "temperature_c": 66,
        "power_watts": 198.0,
        "power_limit_watts": 200.0,
        "default_power_limit_watts": 200.0,
        "sm_clock_mhz": 2610,
        "memory_clock_mhz": 10501,
        "throttle": ("power limit",),
        "busy": 0.98,
        "other_bytes": 2**31,
        "other_busy": 0.02,
        "pcie_generation": 4,
        "pcie_width": 16,
        "max_pcie_generation": 4,
        "max_pcie_width": 16,
    }
    return CardReading(step=number, **(healthy | known))  # type: ignore[arg-type]
