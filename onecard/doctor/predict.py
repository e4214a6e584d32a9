"""Where an unfinished run will end: final loss and finishing time, as ranges.

The evaluations so far are fitted by height + share · B/D^beta: the scaling law gives beta and expects a share of 1, the
run itself gives the height (its last three evaluations) and as much of the share as they tell. So the size of the model
need not be known, and of other optimizers the share is the run's own. The first evaluations lie far above the law and
do not count. The less of a run is seen, the more the height still moves: the range widens, and the plan of the same
config weighs more. Before three evaluations count, the plan alone is used. Where a run ends is what it states, else
where its falling rate ends; else the forecast is for half as many updates again. How often the range held the final
loss of real runs that were cut short is in docs/explain/logs.md. Nats of different tokenizers cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Literal

from onecard.config.schema import keys_that_affect
from onecard.doctor.case import Case
from onecard.doctor.evidence import (
    NANOGPT_LIKE,
    from_scratch,
    known,
    noise,
    of_words,
    planned_steps,
    untrained_loss,
    vals,
    vocabulary,
)
from onecard.doctor.facts import step_times
from onecard.plan.loss import BETA, SETTLED_STEPS, SMALLEST_VOCABULARY, B, forecast_loss
from onecard.plan.ranges import Range
from onecard.plan.token_worth import is_gpt2_with_adamw
from onecard.runs.records import Eval

LAST_EVALUATIONS = 3
SPREAD = 0.06  # nats, from 30 % of the run on
LATE_FALL = 0.06  # nats more that a rate which falls only at the end may bring
COOLDOWN_FALL = (
    0.07  # nats that a cool-down brings beside the slope before it: 0.04 to 0.1 in 40 runs of modded-nanogpt
)
EARLY = 0.3  # share of the run before which the range widens as the share shrinks
BEGINNING = 0.15  # of a run too short for SETTLED_STEPS
PLAN_KEYS = (*keys_that_affect("shape", "tokens"), "dataset", "optimizer")  # what the scaling law reads
ENDED, REACHED = "the run has ended", "the run has reached its last update"
STEADY = 0.02  # a step time nobody disturbs still varies by this share
USUAL_TOKENS = 524_288  # per update, where nobody says how many: most published runs'
# The share of the law's slope: as GPT-2 with AdamW has it, and of other runs 0.5 to 0.8 (modded-nanogpt's records).
LAWFUL, OTHERS = (1.0, 0.15), (0.65, 0.3)
BEND = 0.15  # of a share that was fitted: how much it still changes in real runs,
FAR = 4  # from where the last evaluation is at so many times the step of the first; more before
RISES = 0.05  # nats above the best evaluation: such a run does not follow the law
FALLEN = 0.9  # of the highest rate: below, the shape of its fall can be told
SAME_END = 0.02  # share by which the ends that single rates say may differ
STOPPED = 0.98  # a rate that has fallen by so much of its way has reached its end


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is to come; None for what cannot be predicted."""

    step: int  # that it is for
    steps_to_go: int
    final_loss: Range | None  # in nats per token
    seconds_to_go: Range | None
    basis: str
    end: Literal["stated", "by the rate", "open"] = "stated"  # how the step is known; open: nothing says where it ends

    @property
    def is_of_the_end(self) -> bool:
        """Whether it is for the end of the run, and not for half as many updates again."""
        return self.end != "open"


def predict_end(case: Case) -> Forecast | None:
    """The end of a run that has not reached it; None where the run is finished, or its steps are not known."""
    last, planned = case.facts.last_step, planned_steps(case)
    if last is None or last <= 0 or (planned is not None and last >= planned):
        return None
    end: Literal["stated", "by the rate", "open"] = "stated"
    if planned is None:
        planned, end = _end_by_rate(case), "by the rate"
    if planned is None:
        planned, end = last + max(1, last // 2), "open"
    if last >= STOPPED * planned and end == "by the rate":
        return None
    loss, basis = final_loss(case, planned)
    return Forecast(
        step=planned,
        steps_to_go=planned - last,
        final_loss=loss,
        seconds_to_go=_seconds_to_go(case, planned - last),
        basis=basis,
        end=end,
    )


def why_no_end(case: Case) -> str:
    """Why `predict_end` has nothing to say of a run."""
    last = case.facts.last_step
    if last is None:
        return "the log does not say its steps"
    return REACHED if last else "no update is logged yet"


def _end_by_rate(case: Case) -> int | None:
    """The step at which a rate that falls along half a cosine or a line reaches its end: 0, or a tenth of the highest.

    None where none of these falls fits what is logged. A line says only where it would reach 0: nanoGPT and its kin
    stop at a tenth, other programs at 0.
    """
    rates = [(step.step, step.lr) for step in case.steps if step.lr is not None and step.lr > 0]
    highest = max((rate for _, rate in rates), default=0.0)
    begins = next((step for step, rate in rates if rate >= highest), 0)
    fallen = [(step - begins, rate / highest) for step, rate in rates if step > begins and rate < FALLEN * highest]
    if len(fallen) < 8:
        return None
    tenth = case.run.format in ("nanogpt", "minimal")
    ends: list[tuple[float, float]] = []
    for lowest in (0.0, 0.1):
        shares = [(steps, (rate - lowest) / (1 - lowest)) for steps, rate in fallen if rate > lowest * 1.01 + 0.005]
        cosine = [steps * math.pi / math.acos(2 * share - 1) for steps, share in shares]
        line = [steps / (1 - share) for steps, share in shares] if tenth == bool(lowest) else []
        ends += [(_scatter(each), median(each)) for each in (cosine, line) if len(each) >= 8]
    scatter, steps = min(ends, default=(math.inf, 0.0))
    return begins + round(steps) if scatter <= SAME_END else None


def _scatter(values: Sequence[float]) -> float:
    """How far the middle four fifths of values lie apart, as a share of their middle."""
    tenths = quantiles(values, n=10)
    return (tenths[-1] - tenths[0]) / median(values)


def _settled(case: Case, planned: int) -> list[tuple[Eval, float]]:
    """Evaluations after the beginning, where runs lie up to 1.2 nats above the law."""
    config = known(case, "warmup_iters")
    warmup = config.warmup_iters if config and config.decay_lr else 0
    beginning = min(SETTLED_STEPS, BEGINNING * planned)
    return [pair for pair in vals(case) if pair[0].step >= max(1, beginning, 2 * warmup)]


def final_loss(case: Case, planned: int) -> tuple[Range | None, str]:
    """The validation loss after `planned` updates, and what the prediction is based on; or why there is none."""
    seen, told = _by_evaluations(case, planned), _by_plan(case)
    if isinstance(seen, str):
        if told is None or len(_settled(case, planned)) >= LAST_EVALUATIONS:
            return None, f"no forecast of the loss: {seen}"
        return told, f"the plan's scaling law, until {LAST_EVALUATIONS} evaluations after the beginning are there"
    basis = "scaling law through the last three evaluations"
    if told is None or not (told.low <= seen.high and seen.low <= told.high):
        return seen, basis  # the run itself is the better evidence
    return _together(seen, told), f"{basis}, and the plan of this config"


def _by_evaluations(case: Case, planned: int) -> Range | str:
    """The range by the run's own evaluations; else why there is none."""
    settled = _settled(case, planned)
    if why := _why_not_lawful(case, settled):
        return why
    each = case.facts.tokens_per_step or USUAL_TOKENS

    def slope(step: int) -> float:
        return float(B / (step * each) ** BETA)

    bend = BEND * max(1.0, math.log(FAR) / math.log(settled[-1][0].step / settled[0][0].step))
    share, doubt = _share_of_slope(case, [(slope(found.step), val) for found, val in settled], bend=bend)
    last = settled[-LAST_EVALUATIONS:]
    height = median(val - share * slope(found.step) for found, val in last)
    fall, unsure = _late_fall(case, settled[-1][0].step, planned)
    likely = height + share * slope(planned) - fall
    seen = settled[-1][0].step / planned
    way = max(0.0, doubt - LAWFUL[1]) * (slope(settled[-1][0].step) - slope(planned))
    spread = math.hypot(SPREAD * max(1.0, EARLY / seen), noise(case) / math.sqrt(LAST_EVALUATIONS), way)
    return Range(low=likely - spread - unsure, likely=likely, high=likely + spread)


def _share_of_slope(case: Case, points: Sequence[tuple[float, float]], *, bend: float) -> tuple[float, float]:
    """The share of the law's slope that a run has, and its standard error: as runs of its kind have it, and as its own
    evaluations show, each weighed by how exact it is."""
    config = case.resolved.config if case.resolved else None
    others = (
        case.run.format in ("modded-nanogpt", "nanochat")
        or (config is not None and not is_gpt2_with_adamw(config))
        or _setting(case, "schedule") == "wsd"  # the law is of runs whose rate falls all the time
    )
    expected, error = OTHERS if others or case.facts.tokens_per_step is None else LAWFUL
    middle, level = fmean(x for x, _ in points), fmean(y for _, y in points)
    width = sum((x - middle) ** 2 for x, _ in points)
    own = sum((x - middle) * (y - level) for x, y in points) / width if width else expected
    own_error = math.hypot(noise(case) / math.sqrt(width), bend) if width else math.inf
    weight = error**2 / (error**2 + own_error**2)
    return expected + weight * (own - expected), error * math.sqrt(1 - weight)


def _late_fall(case: Case, last: int, planned: int) -> tuple[float, float]:
    """Nats that a rate which falls late will bring beside the slope so far, and how many more it may."""
    schedule, decays, share = (_setting(case, key) for key in ("schedule", "decay_lr", "decay_share"))
    if schedule == "wsd":
        falling = share * planned if isinstance(share, int | float) and 0 < share <= 1 else planned / 5
        return COOLDOWN_FALL * min(1.0, (planned - last) / falling), 0.0
    if schedule == "cosine" and decays is not False:
        return 0.0, 0.0
    rates = [step.lr for step in case.steps if step.lr is not None]
    if rates and rates[-1] < FALLEN * max(rates):
        return 0.0, 0.0
    if case.run.format in NANOGPT_LIKE or rates:
        return 0.0, LATE_FALL  # nanoGPT and its kin have a cosine, unless somebody changed that
    return LATE_FALL / 2, LATE_FALL / 2


def _setting(case: Case, key: str) -> object:
    """The value of a setting, where the config or the log states it."""
    config = known(case, key)
    return case.run.config.get(key) if config is None else getattr(config, key)


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


def _why_not_lawful(case: Case, settled: Sequence[tuple[Eval, float]]) -> str:
    """Why the evaluations of a run cannot be continued; empty where they can."""
    size, first = vocabulary(case), untrained_loss(case)
    begins = math.log(SMALLEST_VOCABULARY)
    if size is not None and size < SMALLEST_VOCABULARY:
        return f"the scaling law was fitted on BPE tokens, and this vocabulary has {size:,}"
    if size is None and (first is None or first < begins):
        told = "and the log does not begin at step 0" if first is None else f"and the first loss is {first:.2f}"
        return f"the vocabulary is not stated, {told}; the scaling law was fitted on BPE tokens (--config FILE says it)"
    if not from_scratch(case) and known(case, "init_from"):
        return "scaling laws cover runs from scratch"
    if len(settled) < LAST_EVALUATIONS:
        bits = sum(found.bits_per_byte is not None for found in case.evals)
        if bits >= LAST_EVALUATIONS and not vals(case):
            return "it evaluates in bits per byte, and the scaling law is of nats per token"
        return f"fewer than {LAST_EVALUATIONS} evaluations after the beginning"
    best, lowest = min(settled, key=lambda pair: pair[1])
    now = min(val for _, val in settled[-LAST_EVALUATIONS:])
    if now > lowest + max(RISES, LAST_EVALUATIONS * noise(case)):
        return f"the validation loss rises: it was {lowest:.4f} at step {best.step:,}, and since {now:.4f}"
    return ""


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
