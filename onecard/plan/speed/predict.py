"""predict_speed: how fast a trainer trains a config on a card, as ranges, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from onecard.config.schema import RunConfig
from onecard.models.optimizers import Optimizer, nanogpt_optimizer, optimizer_of
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.plan.cards import Card
from onecard.plan.counts import mfu, needed_flops_per_token
from onecard.plan.ranges import Range, within
from onecard.plan.speed.measured import ONECARD_RUNS
from onecard.plan.speed.nanogpt import nanogpt_step
from onecard.plan.speed.onecard import onecard_step
from onecard.plan.speed.rates import (
    UNSURE_SPREAD,
    Host,
    Rates,
    attention_flops_per_second,
    calibration,
    matmul_flops_per_second,
    overlapped,
    tensor_peak,
    work_seconds,
)
from onecard.plan.speed.work import MicroBatch, StepWork, TrainerName

_STEPS = {"nanogpt": nanogpt_step, "onecard": onecard_step}


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
    mfu: float  # share of this card's tensor peak at the likely speed; counts all pairs of attention, as nanoGPT does
    needed_share: float  # the same without the pairs that causal attention skips: never above 1
    micro_batch_seconds: Range
    step_seconds: Range  # one update, without evaluation
    total_seconds: Range  # max_iters updates with evaluations and checkpoints, without compiling
    parts: tuple[SpeedPart, ...]  # they add up to a step and its share of evaluations and checkpoints
    basis: str
    spread: float  # tokens per second lie within ± this share, and never above what the card can do
    host_bound: bool  # launches, not the card, set the pace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Likely seconds of one step, part by part, and of what comes between steps."""

    matmuls: float
    attention: float
    memory_bound: float
    loss: float
    optimizer: float
    launches: float  # what the host adds to the card's time
    host_share: float  # the host's time divided by the card's: above 1, launches decide
    evaluation: float  # one evaluation of both splits
    checkpoint: float
    evaluations: int  # of a run
    checkpoints: int

    @property
    def step(self) -> float:
        return self.matmuls + self.attention + self.memory_bound + self.loss + self.optimizer + self.launches

    @property
    def host_bound(self) -> bool:
        return self.host_share > 1


def predict_speed(
    config: RunConfig, card: Card | None, trainer: TrainerName = "nanogpt", *, ranks: Ranks = ONE_RANK
) -> Speed | None:
    """The speed of a trainer on a card; None where the card or its figures are not known.

    As one of several `ranks`: of a config that is this rank's share, without what they say to each other.
    """
    config = ranks.as_run(config)
    if card is None or not card.peak_flops or not card.bandwidth_bytes_per_second:
        return None
    known = calibration(card)
    times = step_times(config, card, known.rates, trainer)
    fastest = config.tokens_per_step / least_seconds(config, card)
    doubts = _doubts(config, card, trainer, launches_matter=times.host_share > _LAUNCHES_MATTER)
    unsure = doubts or config.dtype == "float32"
    spread = max(known.spread, UNSURE_SPREAD) if unsure else known.spread
    tokens_per_second = within(config.tokens_per_step / times.step, spread).at_most(fastest)
    step_seconds = tokens_per_second.mapped(lambda speed: config.tokens_per_step / speed)
    total = run_seconds(config, times)
    return Speed(
        tokens_per_second=tokens_per_second,
        mfu=mfu(config, tokens_per_second=tokens_per_second.likely, peak_flops=card.peak_flops),
        needed_share=needed_flops_per_token(config) * tokens_per_second.likely / card.peak_flops,
        micro_batch_seconds=step_seconds.mapped(lambda seconds: seconds / config.gradient_accumulation_steps),
        step_seconds=step_seconds,
        total_seconds=step_seconds.mapped(lambda seconds: total * seconds / times.step),
        parts=_parts(config, times, _optimizer(config, trainer)),
        basis="; ".join([known.basis, *doubts]),
        spread=spread,
        host_bound=times.host_bound,
    )


def least_seconds(config: RunConfig, card: Card) -> float:
    """Seconds of a step if it were nothing but its products, at the published rate: no step takes less.

    Clocks above the published ones may make single products faster, but a step is more than its products.
    """
    dtype = card.best_dtype() if config.dtype == "auto" else config.dtype
    return config.tokens_per_step * needed_flops_per_token(config) / tensor_peak(card, dtype)


def _doubts(config: RunConfig, card: Card, trainer: TrainerName, *, launches_matter: bool) -> list[str]:
    """Reasons why a prediction is less certain than the card's own rows suggest."""
    doubts = []
    if launches_matter:
        doubts.append("launches matter here and the processor is unknown: on shared cores up to 1.7 times as long")
    if trainer == "onecard" and card.name not in {run.card for run in ONECARD_RUNS}:
        doubts.append("our trainer was not timed on this card")
    return doubts


# While the card is busy the host runs ahead, and the other way round. Near a tie they slow each other down a little.
_HOST_OVERLAP_POWER = 8.0
# From this ratio on, a host that is a fifth slower makes the step a tenth longer.
_LAUNCHES_MATTER = 0.9
# The wait between the batches of an evaluation: nanoGPT reads every loss. Of 97 rows, 75 have their batches predicted
# within 20 %; the others are predicted up to 65 % too short or 31 % too long.
_EVALUATION_PAUSE_SECONDS = 0.9e-3
# torch.save of float32 weights and moments to a solid-state disk: a rule of thumb. With it, the steps of the two
# RTX 4070 runs that evaluate and save are predicted 5 % and 1 % too long.
_CHECKPOINT_BYTES_PER_SECOND = 1e9


def step_times(config: RunConfig, card: Card, rates: Rates, trainer: TrainerName = "nanogpt") -> StepTimes:
    """Likely seconds of a step with the given rates."""
    dtype = card.best_dtype() if config.dtype == "auto" else config.dtype
    work = _STEPS[trainer](config, dtype, rates.costs)
    micros = config.gradient_accumulation_steps
    products = matmul_flops_per_second(card, rates, dtype)
    pause = rates.our_step_seconds if trainer == "onecard" else rates.host.step_seconds
    summing = work.sums(micros) * work_seconds(work.accumulation, card, rates, products)
    update = summing + work_seconds(work.update, card, rates, products)
    parts = [micros * seconds for seconds in _spent(work.micro_batch, card, rates, dtype)]
    host_seconds = _host_seconds(work, rates.host, micros=micros) + micros * work.reruns * rates.our_rerun_seconds
    unlimited = overlapped(_HOST_OVERLAP_POWER, sum(parts) + update, host_seconds)
    share = micros * work.micro_batch.whole.tensor_flops / unlimited / tensor_peak(card, dtype)
    pace = rates.power.pace(share, dtype) if rates.power else 1.0
    spent, optimizer = _Spent(*(pace * seconds for seconds in parts)), pace * update
    card_seconds = sum(spent) + optimizer
    waiting = overlapped(_HOST_OVERLAP_POWER, card_seconds, host_seconds) - card_seconds
    impossible = max(0.0, least_seconds(config, card) - card_seconds - waiting - pause)
    return StepTimes(
        matmuls=spent.matmuls + impossible,
        attention=spent.attention,
        memory_bound=spent.memory_bound,
        loss=spent.loss,
        optimizer=optimizer,
        launches=waiting + pause,
        host_share=host_seconds / card_seconds,
        evaluation=work.evaluation_batches * _evaluation_batch_seconds(work, card, rates, dtype),
        checkpoint=_optimizer(config, trainer).saved_bytes / _CHECKPOINT_BYTES_PER_SECOND,
        evaluations=work.evaluations,
        checkpoints=work.checkpoints,
    )


def _optimizer(config: RunConfig, trainer: TrainerName) -> Optimizer:
    return optimizer_of(config) if trainer == "onecard" else nanogpt_optimizer(config)


def _host_seconds(work: StepWork, host: Host, *, micros: int) -> float:
    """Seconds the host needs for a step if the card never makes it wait."""
    launching = work.started(micros) * host.launch_seconds + work.added(micros) * host.addition_seconds
    besides = 0.0 if work.recorded else host.micro_batch_seconds
    loading = micros * (besides + work.sequences * host.sequence_seconds + work.stumbles * host.stumble_seconds)
    return launching + loading + host_update_seconds(work, host)


def host_update_seconds(work: StepWork, host: Host) -> float:
    """Seconds the host needs for clipping and the optimizer."""
    tensors = work.tensors * host.tensor_seconds
    return host.update_seconds + tensors + work.update.launches * host.launch_seconds


def _evaluation_batch_seconds(work: StepWork, card: Card, rates: Rates, dtype: str) -> float:
    """Seconds of one evaluation batch.

    nanoGPT waits for its loss, so loading the next batch overlaps with nothing. Our trainer reads it once per split,
    but assuming the same wait brings 28 of 45 measured rows within 20 %. The others, mostly of small batches, take up
    to 3.8 times as long.
    """
    batch = work.evaluation_batch
    forward = max(sum(_spent(batch, card, rates, dtype)), batch.whole.launches * rates.host.launch_seconds)
    return forward + work.sequences * rates.host.sequence_seconds + _EVALUATION_PAUSE_SECONDS


def run_seconds(config: RunConfig, times: StepTimes) -> float:
    """Likely seconds of a whole run."""
    steps = 0 if config.eval_only else config.max_iters
    between = times.evaluations * times.evaluation + times.checkpoints * times.checkpoint
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


def _parts(config: RunConfig, times: StepTimes, optimizer: Optimizer) -> tuple[SpeedPart, ...]:
    updates = max(1, config.max_iters)
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
