"""The course of the logged losses: their level, noise, direction and swings, measured against the run's own past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles

from onecard.doctor.case import Case
from onecard.doctor.evidence import HIGH_ERRORS, LARGEST_LOSS, vals
from onecard.doctor.trend import line_through
from onecard.runs.records import Eval, Step

BLOCKS = 10  # parts of a run whose medians are compared
LEAST_IN_BLOCK = 4
LAST_BLOCKS = 3  # that must all be higher
LIKE_NOISE = 2.4  # kurtosis
SIGMA_PER_MAD = 1.4826  # of a normal distribution
ERROR_OF_MEDIAN = 1.25  # times that of a mean
FEWEST_POINTS = BLOCKS * LEAST_IN_BLOCK
FEWEST_OF_SHORT, LEAST_RISE_OF_SHORT = 12, 1.0  # points of a short log, and nats: its noise is not known well
# Nats that fewer than three last parts must have risen by: no text in an order makes a whole tenth so much harder.
RISEN_LATE = {2: 1.0, 1: 1.5}


@dataclass(frozen=True, kw_only=True)
class Rise:
    """The last part of a run against its best part: medians of tenths of the run, in nats."""

    best: float
    last: tuple[float, ...]
    error: float  # standard error of one median
    best_record: Step
    last_record: Step

    @property
    def height(self) -> float:
        """How far the run ends above its best part: all of its last three parts, or fewer that are far above."""
        late = [
            height
            for parts, least in RISEN_LATE.items()
            if (height := min(self.last[-parts:]) - self.best) > max(least, HIGH_ERRORS * self.error)
        ]
        return max([min(self.last) - self.best, *late])


def training_losses(case: Case) -> list[tuple[Step, float]]:
    """Logged training losses that are numbers, by step."""
    found = [(step, step.loss) for step in case.steps if abs(step.loss) < LARGEST_LOSS]
    return sorted(found, key=lambda pair: pair[0].step)


def every_loss(case: Case) -> Sequence[tuple[Step | Eval, float]]:
    """The training losses; where the log has only a few, the validation losses."""
    trained = training_losses(case)
    evaluated = vals(case)
    return trained if len(trained) >= min(FEWEST_POINTS, len(evaluated)) else evaluated


def noise_of(losses: Sequence[float]) -> float:
    """Standard deviation of one loss around the curve, from the distances between neighbours: a trend hardly adds."""
    return SIGMA_PER_MAD * median(abs(b - a) for a, b in pairwise(losses)) / math.sqrt(2) if len(losses) > 1 else 0.0


def noise_around_slope(losses: Sequence[float]) -> float:
    """The same from how far each lies off the line between its neighbours: no slope adds, however steep."""
    bends = [abs(a - 2 * b + c) for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    return SIGMA_PER_MAD * median(bends) / math.sqrt(6) if bends else 0.0


def rise(points: Sequence[tuple[Step, float]]) -> Rise | None:
    """How far the last three tenths of the run lie above its best tenth, or the last third of a short log above its
    best part; None with too few points to say."""
    if len(points) < FEWEST_OF_SHORT:
        return None
    losses = [loss for _, loss in points]
    blocks = min(BLOCKS, len(losses) // LEAST_IN_BLOCK)
    last = max(1, blocks * LAST_BLOCKS // BLOCKS)
    edges = [round(len(losses) * number / blocks) for number in range(blocks + 1)]
    middles = [median(losses[first:after]) for first, after in pairwise(edges)]
    best = min(range(blocks - last), key=middles.__getitem__)
    # where losses are like those before them, neighbours differ by less than losses vary
    spread = SIGMA_PER_MAD * median(
        abs(loss - middle)
        for middle, (first, after) in zip(middles, pairwise(edges), strict=True)
        for loss in losses[first:after]
    )
    error = ERROR_OF_MEDIAN * max(noise_of(losses), spread) / math.sqrt(len(losses) / blocks)
    return Rise(
        best=middles[best],
        last=tuple(middles[-last:]),
        error=error,
        best_record=points[(edges[best] + edges[best + 1]) // 2][0],
        last_record=points[-1][0],
    )


def highest_gain(points: Sequence[tuple[Step | Eval, float]]) -> float | None:
    """The most that these losses can be falling by for twice the steps, at 95 %; None with too few to say."""
    line = line_through([(math.log2(record.step), loss) for record, loss in points if record.step > 0])
    return line.highest_gain if line else None


@dataclass(frozen=True, kw_only=True)
class Swing:
    """How far losses go up and down around a curve that only falls, in nats."""

    width: float  # from the 5th to the 95th percentile
    peaked: float  # kurtosis: 3 of normal noise, more of real losses; 1.8 of even noise, 1.5 of a sine, 1 of a jump

    @property
    def like_noise(self) -> bool:
        """Whether most losses are near the middle, as chance has it: swings are as often at their ends."""
        return self.peaked > LIKE_NOISE


def swing(losses: Sequence[float]) -> Swing | None:
    """How far losses go up and down around a curve that only falls.

    The curve is the best falling one (pool adjacent violators), so slow swings count as well as fast ones. The first
    quarter, where the loss bends, is left out.
    """
    later = losses[len(losses) // 4 :]
    if len(later) < FEWEST_OF_SHORT:
        return None
    off = [loss - level for loss, level in zip(later, _falling(later), strict=True)]
    if len(off) < FEWEST_POINTS:
        off.remove(max(off, key=abs))  # of so few, a twentieth is a single loss, and a single one is a spike
    cuts = quantiles(off, n=20, method="exclusive" if len(off) >= FEWEST_POINTS // 2 else "inclusive")
    middle = fmean(off)
    spread, fourth = (fmean((each - middle) ** power for each in off) for power in (2, 4))
    return Swing(width=cuts[-1] - cuts[0], peaked=fourth / spread**2 if spread else 0.0)


def _falling(losses: Sequence[float]) -> list[float]:
    """The falling curve nearest to the losses, in squares."""
    means: list[float] = []
    sizes: list[int] = []
    for loss in losses:
        mean, size = loss, 1
        while means and means[-1] < mean:  # it rises: one level for both
            before, many = means.pop(), sizes.pop()
            mean, size = (mean * size + before * many) / (size + many), size + many
        means.append(mean)
        sizes.append(size)
    return [mean for mean, size in zip(means, sizes, strict=True) for _ in range(size)]
