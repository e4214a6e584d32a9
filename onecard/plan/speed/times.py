"""Likely seconds of a step, of an evaluation and of a checkpoint, from the work of a step and the rates of a card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from onecard.config.schema import RunConfig
from onecard.models.optimizers import Optimizer, nanogpt_optimizer, optimizer_of
from onecard.paper.device import Device
from onecard.plan.cards import Card, device_of
from onecard.plan.counts import needed_flops_per_token
from onecard.plan.speed.nanogpt import nanogpt_step
from onecard.plan.speed.onecard import onecard_step
from onecard.plan.speed.rates import (
    Host,
    Rates,
    attention_flops_per_second,
    matmul_flops_per_second,
    overlapped,
    tensor_peak,
    work_seconds,
)
from onecard.plan.speed.work import Costs, MicroBatch, StepWork, TrainerName

# While the card is busy the host runs ahead, and the other way round. Near a tie they slow each other down a little.
_HOST_OVERLAP_POWER = 8.0
# The wait between the batches of an evaluation: nanoGPT reads every loss. Of 97 rows, 75 have their batches predicted
# within 20 %; the others are predicted up to 65 % too short or 31 % too long.
_EVALUATION_PAUSE_SECONDS = 0.9e-3
# torch.save of float32 weights and moments to a solid-state disk: a rule of thumb. With it, the steps of the two
# RTX 4070 runs that evaluate and save are predicted 5 % and 1 % too long.
_CHECKPOINT_BYTES_PER_SECOND = 1e9


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
    evaluation_batches: int  # of one evaluation
    checkpoint: float
    evaluations: int  # of a run
    checkpoints: int

    @property
    def step(self) -> float:
        return self.matmuls + self.attention + self.memory_bound + self.loss + self.optimizer + self.launches

    @property
    def host_bound(self) -> bool:
        return self.host_share > 1


_STEPS = {"nanogpt": nanogpt_step, "onecard": onecard_step}


@lru_cache(maxsize=256)  # a fit of rates asks for the times of the same steps again and again
def _work(config: RunConfig, dtype: str, costs: Costs, device: Device, trainer: TrainerName) -> StepWork:
    return _STEPS[trainer](config, dtype, costs, device)


def step_times(config: RunConfig, card: Card, rates: Rates, trainer: TrainerName = "nanogpt") -> StepTimes:
    """Likely seconds of a step with the given rates."""
    dtype = card.best_dtype() if config.dtype == "auto" else config.dtype
    work = _work(config, dtype, rates.costs, device_of(card), trainer)
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
        evaluation_batches=work.evaluation_batches,
        evaluation=work.evaluation_batches * _evaluation_batch_seconds(work, card, rates, dtype),
        checkpoint=optimizer_for(config, trainer).saved_bytes / _CHECKPOINT_BYTES_PER_SECOND,
        evaluations=work.evaluations,
        checkpoints=work.checkpoints,
    )


def optimizer_for(config: RunConfig, trainer: TrainerName) -> Optimizer:
    """The optimizer that a trainer would use."""
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

    nanoGPT waits for its loss, so loading the next batch overlaps with nothing. Our trainer records no graph of an
    evaluation: Python starts every kernel of its compiled passes.
    """
    batch, launches = work.evaluation_batch, work.evaluation_batch.whole.launches
    on_card = sum(_spent(batch, card, rates, dtype))
    if work.recorded:
        launching = launches * rates.our_evaluation_launch_seconds
        return overlapped(_HOST_OVERLAP_POWER, on_card, launching) + rates.our_evaluation_batch_seconds
    forward = max(on_card, launches * rates.host.launch_seconds)
    return forward + work.sequences * rates.host.sequence_seconds + _EVALUATION_PAUSE_SECONDS


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
        attention=work_seconds(
            batch.attention,
            card,
            rates,
            attention_flops_per_second(card, rates, dtype),
            power=rates.attention_roofline_power,
        ),
        memory_bound=work_seconds(batch.memory_bound, card, rates, products),
        loss=work_seconds(batch.loss, card, rates, products),
    )


def least_seconds(config: RunConfig, card: Card) -> float:
    """Seconds of a step if it were nothing but its products, at the published rate: no step takes less.

    Clocks above the published ones may make single products faster, but a step is more than its products.
    """
    dtype = card.best_dtype() if config.dtype == "auto" else config.dtype
    return config.tokens_per_step * needed_flops_per_token(config) / tensor_peak(card, dtype)
