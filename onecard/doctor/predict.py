"""Where a run that still goes will end: final loss and finishing time, as ranges.

The scaling law gives the slope, the run's own last three evaluations the height: L(D) = law(N, D) + offset. On five
real runs cut at 30, 50 and 70 % this missed the final loss by −0.06 to +0.04 nats; of one whose learning rate stays
high and falls only at the end, by up to +0.10, as what the fall brings is not yet to be seen. Nats of different
tokenizers do not compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from onecard.doctor.case import Case
from onecard.doctor.evidence import known, noise, of_words, planned_steps, vals
from onecard.plan.loss import law
from onecard.plan.ranges import Range

LAST_EVALUATIONS = 3
SPREAD = 0.06  # nats, from 30 % of the run on
LATE_FALL = 0.06  # nats more that a rate which falls only at the end may bring
EARLY = 0.3  # share of the run before which fewer runs were looked at, and the range is twice as wide
STEADY = 0.02  # a step time nobody disturbs still varies by this share


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is to come; None for what cannot be told."""

    steps_to_go: int
    final_loss: Range | None  # in nats per token
    seconds_to_go: Range | None
    basis: str


def predict_end(case: Case) -> Forecast | None:
    """The end of a run that has not reached it; None where there is no end to reach, or nobody knows it."""
    last, planned = case.facts.last_step, planned_steps(case)
    if last is None or planned is None or not 0 < last < planned:
        return None
    loss = _final_loss(case, planned)
    why = "scaling law through the last three evaluations" if loss else "no forecast of the loss: " + _missing(case)
    return Forecast(
        steps_to_go=planned - last, final_loss=loss, seconds_to_go=_seconds_to_go(case, planned - last), basis=why
    )


def loss_at(case: Case, step: int) -> float | None:
    """The likely validation loss at a later step; None where the law says nothing about this run."""
    params, step_tokens = case.facts.params_total, case.facts.tokens_per_step
    last = vals(case)[-LAST_EVALUATIONS:]
    if not of_words(case) or params is None or step_tokens is None or len(last) < LAST_EVALUATIONS:
        return None
    if last[0][0].step <= 0:
        return None
    offset = median(val - law(params, evaluation.step * step_tokens) for evaluation, val in last)
    return law(params, step * step_tokens) + offset


def _final_loss(case: Case, planned: int) -> Range | None:
    likely = loss_at(case, planned)
    if likely is None:
        return None
    spread = SPREAD if (case.facts.last_step or 0) >= EARLY * planned else 2 * SPREAD
    spread = math.hypot(spread, noise(case) / math.sqrt(LAST_EVALUATIONS))
    config = known(case, "schedule", "decay_lr")
    cosine = config is not None and config.schedule == "cosine" and config.decay_lr
    return Range(low=likely - spread - (0 if cosine else LATE_FALL), likely=likely, high=likely + spread)


def _missing(case: Case) -> str:
    if len(vals(case)) < LAST_EVALUATIONS + 1:
        return f"fewer than {LAST_EVALUATIONS} evaluations after the first"
    if case.facts.params_total is None or case.facts.tokens_per_step is None:
        return "the number of parameters or of tokens per update is not known"
    return "the scaling law speaks of words' parts, and this vocabulary is another or not known"


def _seconds_to_go(case: Case, steps_to_go: int) -> Range | None:
    """Updates like those so far, and their evaluations. The range is that of the middle half of the step times, and at
    least ±2 %."""
    step_seconds = case.facts.seconds_per_step
    if not step_seconds:
        return None
    low = high = STEADY
    times = [step.seconds for step in case.steps if step.seconds is not None and step.seconds > 0]
    if len(times) >= 8:
        quarter, _, three_quarters = quantiles(times, n=4)
        low = min(0.9, max(low, 1 - quarter / step_seconds))
        high = max(high, three_quarters / step_seconds - 1)
    updates = steps_to_go * step_seconds
    between = _evaluations_to_go(case, steps_to_go) * (case.facts.evaluation_seconds or 0.0)
    return Range(low=updates * (1 - low) + between, likely=updates + between, high=updates * (1 + high) + between)


def _evaluations_to_go(case: Case, steps_to_go: int) -> int:
    """As many as the distance between those so far makes."""
    steps = [evaluation.step for evaluation in case.evals]
    distances = [after - before for before, after in pairwise(steps) if after > before]
    return int(steps_to_go // median(distances)) if distances else 0
