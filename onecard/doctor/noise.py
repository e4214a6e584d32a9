"""How good an evaluation is: how far it lies off the next, and how far other windows would have put the whole curve.

nanoGPT draws batches anew for each evaluation: what they happen to be makes one differ from the next. onecard reads the
same windows every time: what they happen to be lifts or lowers the whole curve, and is in no difference along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from onecard.runs.records import Eval

NEIGHBOURHOOD = 7  # evaluations that a local line is laid through


def validation(record: Eval) -> float | None:
    """What an evaluation measured on validation data: nats per token, or bits per byte where that is all it says."""
    return record.val_loss if record.val_loss is not None else record.bits_per_byte


def evaluation_noise(evals: Sequence[Eval]) -> float | None:
    """Standard deviation of one validation loss from the next: how far each lies off a line through its nearest
    neighbours, over the logarithm of the step (1.4826 times the median distance).

    With too few for that, the recorded standard error, which is no less in practice: what it measures, the choice of
    the windows, does not change between evaluations of the same windows. None where neither is known.
    """
    scattered = scatter(
        [
            (math.log(record.step), loss)
            for record in evals
            if record.step > 0 and (loss := validation(record)) is not None and math.isfinite(loss)
        ]
    )
    return sampling_error(evals) if scattered is None else scattered


def sampling_error(evals: Sequence[Eval]) -> float | None:
    """Standard error of a validation loss over the windows it was measured on, as recorded: how far other windows of
    the same data would have put the whole curve. None where nothing is recorded."""
    errors = [record.val_loss_error for record in evals if record.val_loss_error is not None]
    recorded = [error for error in errors if math.isfinite(error)]
    return median(recorded) if recorded else None


def scatter(points: Sequence[tuple[float, float]]) -> float | None:
    """Standard deviation of the points of a smooth curve around it; None for fewer than seven."""
    points = points[len(points) // 4 :]  # the first quarter of a loss curve bends too much
    if len(points) < NEIGHBOURHOOD:
        return None
    residuals = [_off_the_line(points, position) for position in range(len(points))]
    middle = median(residuals)  # what is left of the bend
    return 1.4826 * median(abs(residual - middle) for residual in residuals)


def _off_the_line(points: Sequence[tuple[float, float]], position: int) -> float:
    """How far a point lies off the line through its neighbours, over that distance's own spread for unit noise."""
    first = max(0, min(position - NEIGHBOURHOOD // 2, len(points) - NEIGHBOURHOOD))
    others = [points[i] for i in range(first, first + NEIGHBOURHOOD) if i != position]
    x_mean, y_mean = fmean(x for x, _ in others), fmean(y for _, y in others)
    x_spread = sum((x - x_mean) ** 2 for x, _ in others) or 1.0
    slope = sum((x - x_mean) * (y - y_mean) for x, y in others) / x_spread
    x, y = points[position]
    return (y - y_mean - slope * (x - x_mean)) / math.sqrt(1 + 1 / len(others) + (x - x_mean) ** 2 / x_spread)
