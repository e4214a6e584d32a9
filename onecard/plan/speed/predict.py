"""predict_speed: how fast a trainer trains a config on a card, as ranges, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_tokens
from onecard.models.optimizers import Optimizer
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.plan.cards import Card
from onecard.plan.counts import mfu, needed_flops_per_token
from onecard.plan.ranges import Range, within
from onecard.plan.speed.fitted import KnownSpeed, known_speed
from onecard.plan.speed.measured import ONECARD_RUNS
from onecard.plan.speed.times import StepTimes, least_seconds, optimizer_for, step_times
from onecard.plan.speed.work import TrainerName


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPart:
    """Where time goes."""

    name: str
    seconds: float  # per step
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run will be."""

    tokens_per_second: Range  # trained; of a run with eval_only, evaluated, and so are the next four
    mfu: float  # share of this card's tensor peak at the likely speed; counts all pairs of attention, as nanoGPT does
    needed_share: float  # the same without the pairs that causal attention skips: never above 1
    micro_batch_seconds: Range
    step_seconds: Range  # one update, without evaluation
    total_seconds: Range  # max_iters updates with evaluations and checkpoints, without compiling
    parts: tuple[SpeedPart, ...]  # they add up to a step and its share of evaluations and checkpoints
    basis: str
    spread: float  # tokens per second lie within ± this share, and never above what the card can do
    host_bound: bool  # launches, not the card, set the pace
    measured_here: str | None = None  # the date, where it stands on runs that were timed on this machine's card


def predict_speed(
    config: RunConfig, card: Card | None, trainer: TrainerName = "nanogpt", *, ranks: Ranks = ONE_RANK
) -> Speed | None:
    """The speed of a trainer on a card; None where the card or its figures are not known.

    As one of several `ranks`: of a config that is this rank's share, without what they say to each other.
    """
    config = ranks.as_run(config)
    if card is None or not card.peak_flops or not card.bandwidth_bytes_per_second:
        return None
    known = known_speed(card)
    times = step_times(config, card, known.rates, trainer)
    fastest = config.tokens_per_step / least_seconds(config, card)
    doubts = _doubts(config, card, known, trainer, launches_matter=times.host_share > _LAUNCHES_MATTER)
    unsure = bool(doubts) or config.dtype == "float32"
    spread = known.spread_of(config, card, trainer, unsure=unsure)
    # One evaluation is all of a run with eval_only: forward passes, a third of the FLOPs of training.
    only = config.eval_only
    tokens, share = (evaluated_tokens(config, trainer), 1 / 3) if only else (config.tokens_per_step, 1.0)
    likely_seconds = times.evaluation if only else times.step
    tokens_per_second = within(tokens / likely_seconds, spread).at_most(fastest / share)
    step_seconds = tokens_per_second.mapped(lambda speed: tokens / speed)
    batches = times.evaluation_batches if only else config.gradient_accumulation_steps
    total = run_seconds(config, times)
    return Speed(
        tokens_per_second=tokens_per_second,
        mfu=share * mfu(config, tokens_per_second=tokens_per_second.likely, peak_flops=card.peak_flops),
        needed_share=share * needed_flops_per_token(config) * tokens_per_second.likely / card.peak_flops,
        micro_batch_seconds=step_seconds.mapped(lambda seconds: seconds / batches),
        step_seconds=step_seconds,
        total_seconds=step_seconds.mapped(lambda seconds: total * seconds / likely_seconds),
        parts=_parts(config, times, optimizer_for(config, trainer)),
        basis="; ".join([known.basis, *doubts]),
        measured_here=card.calibration.date if card.calibration else None,
        spread=spread,
        host_bound=times.host_bound,
    )


def _doubts(
    config: RunConfig, card: Card, known: KnownSpeed, trainer: TrainerName, *, launches_matter: bool
) -> list[str]:
    """Reasons why a prediction is less certain than the card's own rows suggest."""
    doubts = []
    if launches_matter and not (known.is_here and known.is_near(config, card, trainer)):
        doubts.append("launches matter here and the processor is unknown: on shared cores up to 1.7 times as long")
    if trainer == "onecard" and not known.runs and card.name not in {run.card for run in ONECARD_RUNS}:
        doubts.append("our trainer was not timed on this card")
    return doubts


# From this ratio on, a host that is a fifth slower makes the step a tenth longer.
_LAUNCHES_MATTER = 0.9


def evaluated_tokens(config: RunConfig, trainer: TrainerName) -> int:
    """Tokens that an evaluation reads of both splits."""
    if trainer == "onecard":
        return 2 * eval_tokens(config)
    return 2 * config.eval_iters * config.batch_size * config.block_size


def run_seconds(config: RunConfig, times: StepTimes) -> float:
    """Likely seconds of a whole run."""
    steps = 0 if config.eval_only else config.max_iters
    between = times.evaluations * times.evaluation + times.checkpoints * times.checkpoint
    return steps * times.step + between


def _parts(config: RunConfig, times: StepTimes, optimizer: Optimizer) -> tuple[SpeedPart, ...]:
    updates = max(1, config.max_iters)
    if config.eval_only:
        why = f"2 × eval_iters={config.eval_iters} batches, forward passes alone; nothing is trained"
        return (SpeedPart(name="evaluation", seconds=times.evaluation, why=why),)
    eager = "" if config.compile else ", one kernel per operation"
    between = "norms, GELU, residuals" if config.model == "gpt2" else "norms, rotations, ReLU², residuals"
    named = (
        ("matmuls", times.matmuls, "matrix products of the blocks and the output layer"),
        ("attention", times.attention, "scores, softmax and values, forward and backward"),
        ("memory-bound parts", times.memory_bound, f"{between} and casts: limited by bandwidth{eager}"),
        ("loss", times.loss, f"softmax over {config.vocab_size:,} logits per token, and its gradient"),
        ("optimizer", times.optimizer, f"summing gradients, clipping and {optimizer.title}"),
        (
            "launches",
            times.launches,
            "Python launches kernels more slowly than the card runs them; a larger micro-batch hides it"
            if times.host_bound
            else "the card waits for Python between steps",
        ),
        (
            "evaluation",
            times.evaluation * times.evaluations / updates,
            f"2 × eval_iters={config.eval_iters} batches every eval_interval={config.eval_interval:,} updates",
        ),
        ("checkpoints", times.checkpoint * times.checkpoints / updates, "weights and moments written to disk"),
    )
    return tuple(SpeedPart(name=name, seconds=seconds, why=why) for name, seconds, why in named)
