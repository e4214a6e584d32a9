"""Where the validation loss is going: a line through the last evaluations, with its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onecard.doctor.case import Case
from onecard.doctor.evidence import vals
from onecard.runs.records import Eval

LEAST_EVALUATIONS = 6
LAST_SHARE = 0.25
# Student's t for 1, 2, … 30 degrees of freedom; beyond, 2 is within 2 % (2.040 at 31, 1.960 at last).
TWO_SIDED_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
MANY_FREE = 2.0


@dataclass(frozen=True, kw_only=True)
class Falling:
    """How much a loss falls for twice the tokens, in nats, by a line through its points."""

    gain: float  # positive: it falls
    error: float  # standard error of the gain
    points: int

    @property
    def highest_gain(self) -> float:
        """The upper end of the 95 % interval."""
        free = self.points - 2
        return self.gain + self.error * (TWO_SIDED_95[free - 1] if free <= len(TWO_SIDED_95) else MANY_FREE)


@dataclass(frozen=True, kw_only=True)
class Trend:
    """How much the validation loss falls for twice the tokens, over the last evaluations."""

    line: Falling
    evaluations: tuple[Eval, ...]

    @property
    def gain(self) -> float:
        return self.line.gain

    @property
    def error(self) -> float:
        return self.line.error

    @property
    def highest_gain(self) -> float:
        return self.line.highest_gain


def trend(case: Case) -> Trend | None:
    """The line of validation loss on the logarithm of tokens, through the last quarter but at least six evaluations.

    None with fewer, or where the log has no steps. Steps serve where tokens are not known: a doubling of one is a
    doubling of the other.
    """
    if not case.run.steps_told:
        return None
    found = [(evaluation, val) for evaluation, val in vals(case) if evaluation.step > 0]
    last = found[-max(LEAST_EVALUATIONS, round(LAST_SHARE * len(found))) :]
    if len(last) < LEAST_EVALUATIONS:
        return None
    line = line_through([(math.log2(evaluation.step), val) for evaluation, val in last])
    return Trend(line=line, evaluations=tuple(evaluation for evaluation, _ in last)) if line else None


def line_through(points: Sequence[tuple[float, float]]) -> Falling | None:
    """The line of least squares through (log2 of steps, loss); None through fewer than three, or all at one step."""
    if len(points) < 3:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    middle_x, middle_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - middle_x) ** 2 for x in xs)
    if spread == 0:
        return None
    slope = math.fsum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    left = math.fsum((y - middle_y - slope * (x - middle_x)) ** 2 for x, y in points)
    return Falling(gain=-slope, error=math.sqrt(left / (len(points) - 2) / spread), points=len(points))
