"""Steps for records that print none: from their epoch, if the number of updates per epoch is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

MOST_EPOCHS, MOST_UPDATES = 1e6, 1e12  # no run has more: such a line is damaged


class Placed(Protocol):
    """A record and its position in the log."""

    @property
    def step(self) -> int: ...  # as printed; else the number of losses in the log so far

    @property
    def told(self) -> bool: ...  # whether the step was printed

    @property
    def epoch(self) -> float | None: ...


def updates_per_epoch(printed: Mapping[str, object], total: object, records: Sequence[Placed]) -> float | None:
    """Updates per epoch. If the run printed its end, they follow from all its updates and its last epoch; else from the
    records with a printed step. None if neither is there."""
    names = ("printed_last_epoch", "printed_seconds", "printed_seconds_per_step")
    last_epoch, seconds, each = map(printed.get, names)
    found: float | None = None
    if isinstance(last_epoch, float) and last_epoch > 0:
        if isinstance(total, int):
            found = total / last_epoch
        elif isinstance(seconds, float) and isinstance(each, float):
            found = seconds / each / last_epoch
    told = [record for record in records if record.told and record.epoch]
    if found is None and told and (epoch := told[-1].epoch):
        found = told[-1].step / epoch
    epochs = max((record.epoch or 0.0 for record in records), default=0.0)
    return found if found and 0 < found * max(1.0, epochs) < MOST_UPDATES else None


def steps_by_epoch(losses: Sequence[Placed], evaluations: Sequence[Placed], per_epoch: float) -> list[int]:
    """The steps of losses and evaluations, in order.

    Epochs are printed with two decimals. If neighbours have the same epoch, losses are assumed to be logged at equal
    intervals.
    """
    everyone = (*losses, *evaluations)
    steps = [round((record.epoch or 0.0) * per_epoch) for record in everyone]
    kinds = (steps[: len(losses)], steps[len(losses) :])
    counted = [record for record in losses if not record.told]
    if not counted or all(later > earlier for kind in kinds for earlier, later in pairwise(kind)):
        return steps
    distance = (counted[-1].epoch or 0.0) * per_epoch / counted[-1].step
    return [record.step if record.told else round(record.step * distance) for record in everyone]
