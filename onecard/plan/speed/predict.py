"""predict_speed: how fast nanoGPT trains a config on a card, as ranges, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.counts import count_params, mfu
from onecard.plan.ranges import Range, within
from onecard.plan.speed.rates import (
    UNSURE_SPREAD,
    Rates,
    attention_flops_per_second,
    calibration,
    matmul_flops_per_second,
    overlapped,
    work_seconds,
)
from onecard.plan.speed.work import MicroBatch, accumulation, micro_batch, update


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPart:
    """Where time goes."""

    name: str
    seconds: float  # per step
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run will be."""

    tokens_per_second: Range
    mfu: float  # share of this card's tensor peak at the likely speed
    micro_batch_seconds: Range
    step_seconds: Range  # one update, without evaluation
    total_seconds: Range  # max_iters updates with evaluations and checkpoints; compiling is not in it
    parts: tuple[SpeedPart, ...]  # add up to a step and its share of evaluations and checkpoints
    basis: str
    spread: float  # tokens per second lie within ± this share
    host_bound: bool  # launches, not the card, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Likely seconds of one step, part by part, and of what comes between steps."""

    matmuls: float
    attention: float
    memory_bound: float
    loss: float
    optimizer: float
    launches: float  # what the host adds to the card's time
    host_bound: bool
    evaluation: float  # one evaluation of both splits
    checkpoint: float

    @property
    def step(self) -> float:
        return self.matmuls + self.attention + self.memory_bound + self.loss + self.optimizer + self.launches


def predict_speed(config: RunConfig, card: Card | None) -> Speed | None:
    """The speed of nanoGPT's own loop on a card; None where the card or its figures are not known."""
    if card is None or not card.peak_flops or not card.bandwidth_bytes_per_second:
        return None
    known = calibration(card)
    times = step_times(config, card, known.rates)
    unsure = times.host_bound or config.dtype == "float32"
    spread = max(known.spread, UNSURE_SPREAD) if unsure else known.spread
    tokens_per_second = within(config.tokens_per_step / times.step, spread)
    step_seconds = tokens_per_second.mapped(lambda speed: config.tokens_per_step / speed)
    total = run_seconds(config, times)
    return Speed(
        tokens_per_second=tokens_per_second,
        mfu=mfu(config, tokens_per_second=tokens_per_second.likely, peak_flops=card.peak_flops),
        micro_batch_seconds=step_seconds.mapped(lambda seconds: seconds / config.gradient_accumulation_steps),
        step_seconds=step_seconds,
        total_seconds=step_seconds.mapped(lambda seconds: total * seconds / times.step),
        parts=_parts(config, times),
        basis=known.basis,
        spread=spread,
        host_bound=times.host_bound,
    )


# While the card is busy the host runs ahead, and the other way round; near a tie they hinder each other a little.
_HOST_OVERLAP_POWER = 8.0
# Of a micro-batch's launches, those of the forward pass alone: evaluation batches of seven rows come out within 15 %,
# of the eighth (64 sequences of 256) 30 % too long.
_FORWARD_HOST_SHARE = 0.30
# torch.save of float32 weights and both moments to a solid-state disk: a rule of thumb. With it the steps of the two
# RTX 4070 runs that evaluate and save come out 5 % and 2 % too long.
_CHECKPOINT_BYTES_PER_PARAM, _CHECKPOINT_BYTES_PER_SECOND = 12, 1e9


def step_times(config: RunConfig, card: Card, rates: Rates) -> StepTimes:
    """Likely seconds of a step with the given rates."""
    dtype = card.best_dtype() if config.dtype == "auto" else config.dtype
    micros = config.gradient_accumulation_steps
    products = matmul_flops_per_second(card, rates, dtype)
    spent = _spent(micro_batch(config, dtype, rates.costs), card, rates, dtype)
    forward = _spent(micro_batch(config, dtype, rates.costs, backward=False), card, rates, dtype)
    # The first micro-batch's gradients are added to nothing.
    summing = (micros - 1) * work_seconds(accumulation(config), card, rates, products)
    optimizer = summing + work_seconds(update(config), card, rates, products)
    launching = rates.host_seconds + rates.host_seconds_per_layer * config.n_layer
    loading = rates.host_seconds_per_sequence * config.batch_size
    card_seconds = micros * sum(spent) + optimizer
    updating = rates.update_seconds + rates.update_seconds_per_layer * config.n_layer
    host_seconds = micros * (launching + loading) + updating
    waiting = overlapped(_HOST_OVERLAP_POWER, card_seconds, host_seconds) - card_seconds
    # Evaluation waits for every batch's loss, so loading the next one overlaps with nothing.
    evaluation_batch = max(sum(forward), _FORWARD_HOST_SHARE * launching) + loading + rates.host_seconds
    return StepTimes(
        matmuls=micros * spent.matmuls,
        attention=micros * spent.attention,
        memory_bound=micros * spent.memory_bound,
        loss=micros * spent.loss,
        optimizer=optimizer,
        launches=waiting + rates.step_seconds,
        host_bound=host_seconds > 0.8 * card_seconds,
        evaluation=2 * config.eval_iters * evaluation_batch,
        checkpoint=_CHECKPOINT_BYTES_PER_PARAM * count_params(config).total / _CHECKPOINT_BYTES_PER_SECOND,
    )


def evaluations(config: RunConfig) -> int:
    """How often nanoGPT evaluates in a run: before the first update, and after every eval_interval."""
    return 1 if config.eval_only else 1 + config.max_iters // config.eval_interval


def checkpoints(config: RunConfig) -> int:
    """How often nanoGPT saves at most: after every evaluation but the first (the best alone, unless always)."""
    return 0 if config.eval_only else config.max_iters // config.eval_interval


def run_seconds(config: RunConfig, times: StepTimes) -> float:
    """Likely seconds of a whole run."""
    steps = 0 if config.eval_only else config.max_iters
    between = evaluations(config) * times.evaluation + checkpoints(config) * times.checkpoint
    return steps * times.step + between


class _Spent(NamedTuple):
    """Seconds of a micro-batch's parts on a card."""

    matmuls: float
    attention: float
    memory_bound: float
    loss: float


def _spent(batch: MicroBatch, card: Card, rates: Rates, dtype: str) -> _Spent:
    products = matmul_flops_per_second(card, rates, dtype)
    return _Spent(
        matmuls=work_seconds(batch.matmuls, card, rates, products),
        attention=work_seconds(batch.attention, card, rates, attention_flops_per_second(card, rates, dtype)),
        memory_bound=work_seconds(batch.memory_bound, card, rates, products),
        loss=work_seconds(batch.loss, card, rates, products),
    )


def _parts(config: RunConfig, times: StepTimes) -> tuple[SpeedPart, ...]:
    updates = max(1, config.max_iters)
    eager = "" if config.compile else ", one kernel per operation"
    named = (
        ("matmuls", times.matmuls, "matrix products of the blocks and the output layer"),
        ("attention", times.attention, "scores, softmax and values, forward and backward"),
        ("memory-bound parts", times.memory_bound, f"norms, GELU, residuals and casts: bandwidth decides{eager}"),
        ("loss", times.loss, f"softmax over {config.vocab_size:,} logits a token and its gradient"),
        ("optimizer", times.optimizer, "summing gradients, clipping and AdamW"),
        (
            "launches",
            times.launches,
            "Python launches kernels slower than the card runs them: a larger micro-batch hides it"
            if times.host_bound
            else "the card waits for Python between steps",
        ),
        (
            "evaluation",
            times.evaluation * evaluations(config) / updates,
            f"2 × eval_iters={config.eval_iters} batches every eval_interval={config.eval_interval:,} updates",
        ),
        ("checkpoints", times.checkpoint * checkpoints(config) / updates, "weights and moments written to disk"),
    )
    return tuple(SpeedPart(name=name, seconds=seconds, why=why) for name, seconds, why in named)
