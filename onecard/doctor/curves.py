"""Loss curves over tokens or over seconds of training, read between their points."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import fmean, median
from typing import Literal

from onecard.doctor.case import Case
from onecard.doctor.evidence import ASSUMED_NOISE
from onecard.doctor.facts import elapsed_seconds
from onecard.doctor.noise import scatter
from onecard.runs.records import Eval, Step

Measure = Literal["val_loss", "bits_per_byte", "train_loss"]
Axis = Literal["tokens", "seconds"]

STEPS_PER_POINT = 20  # of training losses: single ones are too noisy
FEWEST_STEPS = 5 * STEPS_PER_POINT  # with fewer, single losses are used
SHARES = (0.25, 0.5, 1.0)  # of the shortest run: where losses are read


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A loss, and how far the run had come."""

    step: int
    tokens: float | None
    seconds: float | None  # of training, without evaluation
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A loss read off a curve, and its standard deviation."""

    loss: float
    noise: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Points with finite losses, by step, and the last point of the run, whose loss may be NaN."""

    points: tuple[Point, ...]
    end: Point
    lost: Point | None  # where the loss became NaN or infinite and stayed so
    noise: float  # standard deviation of one point from the next
    noise_known: bool  # False where it is ASSUMED_NOISE
    shared_error: float = 0.0  # standard error that all points share, from the windows they were measured on

    @property
    def point_noise(self) -> float:
        """Standard deviation of one point, for comparing it with another curve."""
        return math.hypot(self.noise, self.shared_error)

    def last(self, axis: Axis) -> float | None:
        """How far the run went; None where it is not known."""
        return _place(self.end, axis)


def common_measure(cases: Sequence[Case], *, same_tokens: bool = True) -> Measure | None:
    """What all runs measured: validation loss if possible, else bits per byte, else training loss.

    Bits per byte come first where the tokens differ: they can still be compared.
    """
    order: tuple[Measure, ...] = ("val_loss", "bits_per_byte", "train_loss")
    for measure in order if same_tokens else ("bits_per_byte", "val_loss", "train_loss"):
        if all(len(_values(case, measure)) > 0 for case in cases):
            return measure
    return None


def loss_curve(case: Case, measure: Measure, *, same_windows: bool = False) -> Curve:
    """The curve of a run. Training losses are medians of twenty steps, or single steps in a short run.

    `same_windows`: all curves were measured on the same windows, so the choice of windows makes no difference.
    """
    clock = clock_of(case)
    each = case.facts.tokens_per_step if case.run.steps_told else None
    logged = [
        Point(
            step=step,
            tokens=step * each if each else None,
            seconds=clock(step),
            loss=loss,
        )
        for step, loss in _values(case, measure)
    ]
    points = tuple(point for point in logged if math.isfinite(point.loss))
    scattered = scatter([(math.log(point.step), point.loss) for point in points if point.step > 0])
    sampling = _sampling_error(case, measure)
    measured = sampling if scattered is None else scattered
    return Curve(
        points=points,
        end=logged[-1],
        lost=_lost(logged),
        noise=ASSUMED_NOISE if measured is None else measured,
        noise_known=measured is not None,
        shared_error=0.0 if scattered is None or sampling is None or same_windows else sampling,
    )


def same_windows(cases: Sequence[Case]) -> bool:
    """Whether all runs are onecard's and were evaluated on the same windows, by their records."""
    read = {
        (case.resolved.config.dataset if case.resolved else None, found.block_size, found.tokens_read)
        for case in cases
        for found in case.evals
    }
    return all(case.run.format == "onecard" for case in cases) and len(read) == 1 and None not in read.pop()


def _sampling_error(case: Case, measure: Measure) -> float | None:
    """The recorded standard error over the windows, in the unit of the measure."""
    error, last = case.facts.sampling_error, case.facts.last_val
    if measure == "val_loss" or error is None:
        return error
    if measure == "train_loss" or last is None or not last.val_loss or last.bits_per_byte is None:
        return None
    return error * last.bits_per_byte / last.val_loss


def _lost(logged: Sequence[Point]) -> Point | None:
    found = None
    for point in reversed(logged):
        if math.isfinite(point.loss):
            break
        found = point
    return found


def read_at(curve: Curve, axis: Axis, place: float) -> Reading | None:
    """The loss after so many tokens or seconds, on a line over their logarithm between two points; None outside.

    It is NaN or infinite from where the run's loss became so.
    """
    lost, end = _place(curve.lost, axis) if curve.lost else None, curve.last(axis)
    if lost is not None and end is not None and lost <= place <= end * (1 + 1e-9):
        return Reading(loss=curve.end.loss, noise=0.0)
    known = [(math.log(x), point.loss) for point in curve.points if (x := _place(point, axis) or 0) > 0]
    if not known or place <= 0 or not known[0][0] <= math.log(place) <= known[-1][0] + 1e-9:
        return None
    after = min(bisect_left(known, math.log(place), key=lambda pair: pair[0]), len(known) - 1)
    if after == 0:
        return Reading(loss=known[0][1], noise=curve.point_noise)
    (x0, y0), (x1, y1) = known[after - 1], known[after]
    share = min(1.0, (math.log(place) - x0) / (x1 - x0)) if x1 > x0 else 1.0
    noise = math.hypot(curve.noise * math.hypot(1 - share, share), curve.shared_error)
    return Reading(loss=(1 - share) * y0 + share * y1, noise=noise)


def side_by_side(curves: Sequence[Curve], axis: Axis) -> Iterator[tuple[float, tuple[Reading | None, ...]]]:
    """The places at which at least two runs have a loss, and each run's loss there."""
    ends = [end for curve in curves if (end := curve.last(axis) or 0) > 0]
    if len(ends) < 2:
        return
    for place in (share * min(ends) for share in SHARES):
        readings = tuple(read_at(curve, axis, place) for curve in curves)
        if sum(reading is not None for reading in readings) > 1:
            yield place, readings


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Where a curve falls to a loss, and by what share noise may move that place."""

    point: Point
    spread: float


def passes(curve: Curve, target: Reading) -> Crossing | None:
    """Where the curve falls to a loss and stays there: a single low point is noise.

    The place is on a line through the two points before and the two after, over the logarithm of the step.
    """
    points = curve.points
    for number, (before, after) in enumerate(pairwise(points)):
        following = points[number + 2] if number + 2 < len(points) else after
        if before.loss > target.loss >= after.loss and following.loss <= target.loss:
            near = [point for point in points[max(0, number - 1) : number + 3] if point.step > 0]
            other = Reading(loss=target.loss, noise=math.hypot(target.noise, curve.shared_error))
            return _crossing(near, before, after, curve.noise, other)
    return None


def _crossing(near: Sequence[Point], before: Point, after: Point, noise: float, target: Reading) -> Crossing:
    share = (before.loss - target.loss) / (before.loss - after.loss)
    step, spread = before.step + share * (after.step - before.step), 0.0
    if len(near) > 1:
        x_mean, y_mean = fmean(math.log(p.step) for p in near), fmean(p.loss for p in near)
        x_spread = sum((math.log(p.step) - x_mean) ** 2 for p in near)
        slope = sum((math.log(p.step) - x_mean) * (p.loss - y_mean) for p in near) / x_spread
        if slope < 0:
            x = min(math.log(near[-1].step), max(math.log(near[0].step), x_mean + (target.loss - y_mean) / slope))
            step = math.exp(x)
            line = noise * math.sqrt(1 / len(near) + (x - x_mean) ** 2 / x_spread)
            spread = math.hypot(line, target.noise) / -slope
    place = Point(
        step=round(step),
        tokens=_along(before, after, step, "tokens"),
        seconds=_along(before, after, step, "seconds"),
        loss=target.loss,
    )
    return Crossing(point=place, spread=spread)


def _along(before: Point, after: Point, step: float, axis: Axis) -> float | None:
    """Tokens or seconds at a step: both grow evenly with the steps."""
    low, high = _place(before, axis), _place(after, axis)
    if low is None or high is None:
        return None
    return low + (high - low) * (step - before.step) / max(1, after.step - before.step)


def _place(point: Point, axis: Axis) -> float | None:
    return point.tokens if axis == "tokens" else point.seconds


def _values(case: Case, measure: Measure) -> list[tuple[int, float]]:
    """Steps and losses of a measure, finite or not."""
    if measure == "train_loss":
        odd = list(takewhile(lambda step: not math.isfinite(step.loss), reversed(case.steps)))
        lost = {step.step: step.loss for step in (*odd[-1:], *odd[:1])}  # where the loss became NaN, and the end
        return [*_medians([step for step in case.steps if math.isfinite(step.loss)]), *lost.items()]
    pairs = [(record.step, getattr(record, measure)) for record in case.evals]
    return [(step, loss) for step, loss in pairs if loss is not None]


def steps_per_point(steps: Sequence[Step]) -> int:
    """How many training losses make one point of a curve."""
    return STEPS_PER_POINT if sum(math.isfinite(step.loss) for step in steps) >= FEWEST_STEPS else 1


def _medians(steps: Sequence[Step]) -> Iterator[tuple[int, float]]:
    """Medians of twenty, placed at the middle step. At the last step a run that logs less often would look slower."""
    size = steps_per_point(steps)
    for first in range(0, len(steps), size):
        group = steps[first : first + size]
        yield round(median(step.step for step in group)), median(step.loss for step in group)


def clock_of(case: Case) -> Callable[[int], float | None]:
    """Seconds of training after a step: as the program counted them, else the number of steps times the usual time."""
    counted: list[tuple[int, float]] = []
    records: list[Step | Eval] = sorted([*case.steps, *case.evals], key=lambda record: record.step)
    for record in records:
        seconds = elapsed_seconds(record)
        if isinstance(seconds, float) and math.isfinite(seconds) and (not counted or record.step > counted[-1][0]):
            counted.append((record.step, seconds))
    usual = case.facts.seconds_per_step if case.run.steps_told else None

    def clock(step: int) -> float | None:
        if counted:
            after = bisect_left(counted, step, key=lambda pair: pair[0])
            if after < len(counted) and counted[after][0] == step:
                return counted[after][1]
            (s0, t0), (s1, t1) = counted[after - 1] if after else (0, 0.0), counted[min(after, len(counted) - 1)]
            return t0 + (t1 - t0) * (step - s0) / (s1 - s0) if s1 > s0 else t1
        return step * usual if usual is not None else None

    return clock
