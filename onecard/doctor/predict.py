"""Where an unfinished run will end: final loss and finishing time, as ranges.

The scaling law gives the slope, the run's own last three evaluations the height: L(D) = law(N, D) + offset. The first
evaluations lie far above the law and do not count. The less of a run is seen, the more the height still moves: the
range widens, and the plan of the same config weighs more. Before three evaluations count, the plan alone is used. How
often the range held the final loss of real runs that were cut short is in docs/explain/logs.md. Nats of different
tokenizers cannot be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from onecard.config.schema import keys_that_affect
from onecard.doctor.case import Case
from onecard.doctor.evidence import from_scratch, known, noise, of_words, planned_steps, vals
from onecard.doctor.facts import step_times
from onecard.plan.loss import SETTLED_STEPS, forecast_loss, law
from onecard.plan.ranges import Range
from onecard.plan.token_worth import is_gpt2_with_adamw, why_unknown_worth
from onecard.runs.records import Eval

LAST_EVALUATIONS = 3
SPREAD = 0.06  # nats, from 30 % of the run on
LATE_FALL = 0.06  # nats more that a rate which falls only at the end may bring
EARLY = 0.3  # share of the run before which the range widens as the share shrinks
BEGINNING = 0.15  # of a run too short for SETTLED_STEPS
PLAN_KEYS = (*keys_that_affect("shape", "tokens"), "dataset", "optimizer")  # what the scaling law reads
ENDED, REACHED = "the run has ended", "the run has reached its last update"
STEADY = 0.02  # a step time nobody disturbs still varies by this share


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is to come; None for what cannot be predicted."""

    step: int  # the last
    steps_to_go: int
    final_loss: Range | None  # in nats per token
    seconds_to_go: Range | None
    basis: str


def predict_end(case: Case) -> Forecast | None:
    """The end of a run that has not reached it; None where the run is finished, or nothing says how long it is."""
    last, planned = case.facts.last_step, planned_steps(case)
    if last is None or planned is None or not 0 < last < planned:
        return None
    loss, basis = final_loss(case, planned)
    return Forecast(
        step=planned,
        steps_to_go=planned - last,
        final_loss=loss,
        seconds_to_go=_seconds_to_go(case, planned - last),
        basis=basis,
    )


def why_no_end(case: Case) -> str:
    """Why `predict_end` has nothing to say of a run."""
    last, planned = case.facts.last_step, planned_steps(case)
    if last is None:
        return "the log does not say its steps"
    if planned is None:
        return "nothing says how many updates the run is to make"
    return REACHED if last else "no update is logged yet"


def loss_at(case: Case, step: int) -> float | None:
    """The likely validation loss at a later step; None where the scaling law does not cover this run."""
    params, step_tokens = case.facts.params_total, case.facts.tokens_per_step
    if case.resolved and not is_gpt2_with_adamw(case.resolved.config):
        return None  # nobody has published how such a run falls; what it ends at, the plan may know
    last = _settled(case)[-LAST_EVALUATIONS:]
    if not of_words(case) or params is None or step_tokens is None or len(last) < LAST_EVALUATIONS:
        return None
    offset = median(val - law(params, evaluation.step * step_tokens) for evaluation, val in last)
    return law(params, step * step_tokens) + offset


def _settled(case: Case) -> list[tuple[Eval, float]]:
    """Evaluations after the beginning, where runs lie up to 1.2 nats above the law."""
    config, planned = known(case, "warmup_iters"), planned_steps(case)
    warmup = config.warmup_iters if config and config.decay_lr else 0
    beginning = min(SETTLED_STEPS, BEGINNING * planned) if planned else SETTLED_STEPS
    return [pair for pair in vals(case) if pair[0].step >= max(1, beginning, 2 * warmup)]


def final_loss(case: Case, planned: int) -> tuple[Range | None, str]:
    """The validation loss after `planned` updates, and what the prediction is based on; or why there is none."""
    seen, told = _by_evaluations(case, planned), _by_plan(case)
    if seen is None:
        if told is None:
            return None, "no forecast of the loss: " + _missing(case)
        return told, f"the plan's scaling law, until {LAST_EVALUATIONS} evaluations after the beginning are there"
    basis = "scaling law through the last three evaluations"
    if told is None or not (told.low <= seen.high and seen.low <= told.high):
        return seen, basis  # the run itself is the better evidence
    return _together(seen, told), f"{basis}, and the plan of this config"


def _by_evaluations(case: Case, planned: int) -> Range | None:
    likely = loss_at(case, planned)
    if likely is None:
        return None
    share = _settled(case)[-1][0].step / planned
    spread = math.hypot(SPREAD * max(1.0, EARLY / share), noise(case) / math.sqrt(LAST_EVALUATIONS))
    config = known(case, "schedule", "decay_lr")
    cosine = config is not None and config.schedule == "cosine" and config.decay_lr
    return Range(low=likely - spread - (0 if cosine else LATE_FALL), likely=likely, high=likely + spread)


def _by_plan(case: Case) -> Range | None:
    """What the plan says of the config; None if it is not known, the law does not hold, or the run is better."""
    config = known(case, *PLAN_KEYS)
    if config is None or not from_scratch(case) or not of_words(case):
        return None
    forecast = forecast_loss(config, case.data.train_tokens)
    if forecast is None or forecast.caution or any(val < forecast.final.low for _, val in vals(case)):
        return None
    return forecast.final


def _together(seen: Range, told: Range) -> Range:
    """Both weighed by their widths. The range is no narrower than the narrower one: they share the law."""
    weights = [1 / (each.high - each.low) ** 2 for each in (seen, told)]
    likely = (seen.likely * weights[0] + told.likely * weights[1]) / sum(weights)
    narrower = min(seen, told, key=lambda each: each.high - each.low)
    below, above = narrower.likely - narrower.low, narrower.high - narrower.likely
    return Range(low=likely - below, likely=likely, high=likely + above)


def _missing(case: Case) -> str:
    if case.resolved and (why := why_unknown_worth(case.resolved.config)):
        return why
    if len(_settled(case)) < LAST_EVALUATIONS:
        return f"fewer than {LAST_EVALUATIONS} evaluations after the beginning"
    if case.facts.params_total is None or case.facts.tokens_per_step is None:
        return "the number of parameters or of tokens per update is not known"
    return "the scaling law was fitted on BPE tokens, and this vocabulary is another or not known"


def _seconds_to_go(case: Case, steps_to_go: int) -> Range | None:
    """Updates like those so far, and their evaluations. The range is that of the middle half of the step times without
    evaluation, and at least ±2 %."""
    step_seconds = case.facts.seconds_per_step
    if not step_seconds:
        return None
    low = high = STEADY
    times = step_times(case.run, case.resolved, case.steps, case.evals).plain
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
