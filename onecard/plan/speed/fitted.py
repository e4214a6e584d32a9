"""The rates of a card that has measured runs: what is known without them, moved until it explains the runs.

Five factors move: of products, of attention, of bytes, of the host's launches, and of our trainer's wait once a step. A
run tells about some of them only, so each is held near what was known, as firmly as that was known. How far runs
are off that were left out of the fit says how wide the ranges are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.speed.measured import distance, runs_of_card
from onecard.plan.speed.measured_run import MeasuredRun
from onecard.plan.speed.rates import H200_RATES, UNSURE_SPREAD, Host, Rates, estimated_rates
from onecard.plan.speed.times import step_times
from onecard.plan.speed.work import TrainerName

# How far the logarithm of each factor may be from what was known before, and that of a run's time from the fit. The
# first are the ranges of cards that nobody measured (rates.py); the last is what repeated runs of one config differ by.
PRODUCTS, ATTENTION, BYTES, HOST, WAIT = 0.3, 0.4, 0.3, 0.4, 0.4
NOISE = 0.02
ROUNDS, SETTLED, STEP = 6, 1e-4, 1e-3
LONGEST_MOVE = 0.5  # of a round

NEAR = 0.7  # distance (measured.py) up to which a run says most about another: twice the tokens of a micro-batch
# The least that is said of runs near to measured ones and of others, and how many times the left-out error. Of the 47
# recorded runs of our trainer on an H200, planned from the runs of one of three models alone on a card that is far from
# estimated right, nine of ten are within these ranges (docs/measurements/calibration.md).
LEAST_NEAR, LEAST_FAR = 0.05, 0.12
TIMES_NEAR, TIMES_FAR = 2, 3
ALONE = 0.05  # in place of a left-out error, where fewer runs than FEWEST are known
FEWEST = 3
WIDEST = 0.9  # runs that contradict each other more say nothing
ELSEWHERE = 0.05  # more, where another machine measured them: two of one kind differ by as much


@dataclass(frozen=True, kw_only=True)
class KnownSpeed:
    """The rates that predictions for a card stand on, and how sure they are."""

    rates: Rates
    spread: float  # of what is far from all runs, or where there are none
    basis: str
    near_spread: float | None = None  # of what is near a run; None where the card has no runs of its own
    runs: tuple[MeasuredRun, ...] = ()  # the card's own
    is_here: bool = False  # this machine measured them

    def is_near(self, config: RunConfig, card: Card, trainer: TrainerName) -> bool:
        """Whether one of the card's runs is like this one."""
        return trainer == "onecard" and any(distance(run, config, card) <= NEAR for run in self.runs)

    def spread_of(self, config: RunConfig, card: Card, trainer: TrainerName, *, unsure: bool) -> float:
        """How far the tokens per second of a run may be off; `unsure` where something about it is in doubt."""
        if self.near_spread is not None and self.is_near(config, card, trainer):
            return self.near_spread
        return max(self.spread, UNSURE_SPREAD) if unsure else self.spread


@lru_cache(maxsize=64)
def known_speed(card: Card) -> KnownSpeed:
    """What is known about a card's speed: from its own runs where it has some, else from other cards."""
    estimated = estimated_rates(card)
    runs = runs_of_card(card)
    if not runs:
        return KnownSpeed(rates=estimated.rates, spread=estimated.spread, basis=estimated.basis)
    here = card.calibration
    costs = estimated.rates.costs
    base = replace(  # the runs are of our trainer, so its passes count as what they are
        estimated.rates, costs=replace(costs, written_out_byte=costs.written_out_byte or _WRITTEN_OUT_BYTE)
    )
    rates, left_out = fitted(runs, card, base), left_out_error(runs, card, base)
    more = 0.0 if here else ELSEWHERE
    error = ALONE if left_out is None else left_out
    number = "one run" if len(runs) == 1 else f"{len(runs)} runs"
    sure = "" if left_out is None else f"; left out of the fit, they are predicted within {max(left_out, 0.01):.0%}"
    return KnownSpeed(
        rates=rates,
        spread=_spread(estimated.spread, least=LEAST_FAR + more, seen=TIMES_FAR * error + more),
        near_spread=_spread(estimated.spread, least=LEAST_NEAR + more, seen=TIMES_NEAR * error + more),
        basis=f"{here.source}, {number}{sure}" if here else f"{number} that people sent of this card{sure}",
        runs=runs,
        is_here=here is not None,
    )


def _spread(estimated: float, *, least: float, seen: float) -> float:
    """What the left-out runs say; where they agree well, no more than was said without them."""
    return min(WIDEST, max(min(estimated, least), seen))


_WRITTEN_OUT_BYTE = H200_RATES.costs.written_out_byte


def fitted(runs: Sequence[MeasuredRun], card: Card, base: Rates) -> Rates:
    """The rates that explain the runs best, by least squares on logarithms (Gauss-Newton)."""
    return _moved(base, _factors(runs, card, base))


def left_out_error(runs: Sequence[MeasuredRun], card: Card, base: Rates) -> float | None:
    """The root of the mean square of the runs' errors, each predicted from all others; None for too few of them.

    Without a fit for each: of a linear fit, a run that is left out is missed by its residual divided by one less its
    leverage, and the logarithm of a time is nearly linear in those of the factors.
    """
    if len(runs) < FEWEST:
        return None
    here = _factors(runs, card, base)
    slopes, now = _slopes(runs, card, base, here)
    normal = _normal(slopes)
    squares = 0.0
    for number, residual in enumerate(now[: len(runs)]):
        row = [slope[number] for slope in slopes]
        leverage = sum(a * b for a, b in zip(row, _solved(normal, row), strict=True))
        squares += (NOISE * residual / max(LEAST_LEFT, 1 - leverage)) ** 2
    return math.sqrt(squares / len(runs))


LEAST_LEFT = 0.05  # of a run that alone decides a factor
_HELD = (PRODUCTS, ATTENTION, BYTES, HOST, WAIT)


def _factors(runs: Sequence[MeasuredRun], card: Card, base: Rates) -> list[float]:
    """Logarithms of the factors."""
    here = [0.0] * len(_HELD)
    for _ in range(ROUNDS):
        slopes, now = _slopes(runs, card, base, here)
        downhill = [-sum(a * b for a, b in zip(slope, now, strict=True)) for slope in slopes]
        move = [max(-LONGEST_MOVE, min(LONGEST_MOVE, each)) for each in _solved(_normal(slopes), downhill)]
        here = [a + b for a, b in zip(here, move, strict=True)]
        if max(map(abs, move)) < SETTLED:
            break
    return here


def _slopes(
    runs: Sequence[MeasuredRun], card: Card, base: Rates, here: list[float]
) -> tuple[list[list[float]], list[float]]:
    """How every residual changes with each factor, and the residuals."""
    now = _residuals(runs, card, base, here)
    slopes = []
    for index in range(len(here)):
        there = [*here]
        there[index] += STEP
        slopes.append([(b - a) / STEP for a, b in zip(now, _residuals(runs, card, base, there), strict=True)])
    return slopes, now


def _normal(slopes: list[list[float]]) -> list[list[float]]:
    return [[sum(a * b for a, b in zip(one, other, strict=True)) for other in slopes] for one in slopes]


def _residuals(runs: Sequence[MeasuredRun], card: Card, base: Rates, factors: list[float]) -> list[float]:
    rates = _moved(base, factors)
    of_runs = [_error(run, card, rates) / NOISE for run in runs]
    return of_runs + [factor / held for factor, held in zip(factors, _HELD, strict=True)]


def _error(run: MeasuredRun, card: Card, rates: Rates) -> float:
    """The logarithm of predicted over measured tokens per second."""
    seconds = step_times(run.config, card, rates, "onecard").step
    return math.log(run.config.tokens_per_step / seconds / run.tokens_per_second)


def _moved(base: Rates, factors: Sequence[float]) -> Rates:
    products, attention, moved_bytes, host, wait = map(math.exp, factors)
    return replace(
        base,
        matmul_share=base.matmul_share * products,
        float32_matmul_share=base.float32_matmul_share * products,
        attention_share=base.attention_share * attention,
        float32_attention_share=base.float32_attention_share * attention,
        bandwidth_share=base.bandwidth_share * moved_bytes,
        host=Host(**{name: host * getattr(base.host, name) for name in Host.__dataclass_fields__}),
        our_step_seconds=base.our_step_seconds * wait,
        our_rerun_seconds=base.our_rerun_seconds * host,
        our_evaluation_launch_seconds=base.our_evaluation_launch_seconds * host,
        our_evaluation_batch_seconds=base.our_evaluation_batch_seconds * host,
    )


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a few linear equations whose matrix is positive definite, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for pivot, row in enumerate(rows):
        for other in rows[pivot + 1 :]:
            share = other[pivot] / row[pivot]
            other[:] = [b - share * a for a, b in zip(row, other, strict=True)]
    found = [0.0] * len(rows)
    for pivot in reversed(range(len(rows))):
        known = sum(rows[pivot][index] * found[index] for index in range(pivot + 1, len(rows)))
        found[pivot] = (rows[pivot][-1] - known) / rows[pivot][pivot]
    return found
