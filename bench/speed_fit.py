"""The fit of the H200's and the RTX 4070's rates: least squares on logarithms (Levenberg-Marquardt).

It fits seconds per step, and seconds of the kernels by kind. First nanoGPT's rows give the rates, as if there were no
power limit, so the shares include its cost. Then steps of our rows, and of both trainers in `onecard bench` at 124M,
give what it costs beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from bench.speed_rows import Row, benched_rows, own_rows
from onecard.config.schema import RunConfig
from onecard.paper.device import H200
from onecard.plan.cards import Card, device_of
from onecard.plan.speed.nanogpt import nanogpt_step
from onecard.plan.speed.rates import (
    ADA_GEFORCE_RATES,
    H200_RATES,
    OLDER,
    SLOWDOWN,
    TILE_BYTES_PER_FLOP,
    Host,
    Power,
    Rates,
    matmul_flops_per_second,
    rates_by_figures,
    work_seconds,
)
from onecard.plan.speed.times import host_update_seconds, step_times
from onecard.plan.speed.work import Costs

RATE_NAMES = ("matmul_share float32_matmul_share float32_attention_share kernel_seconds product_seconds").split()
HOST_NAMES = list(Host.__dataclass_fields__)
COST_NAMES = ["pointwise_flops", "loss_flops", "dropout_flops"]  # attention's are read off bench/attention_kernels.py
POWER_NAMES = list(Power.__dataclass_fields__)
# Round values that the fit starts from and is loosely held to. They are not the fitted ones, so a row that is left out
# has no influence through them. Changing those of an addition, a micro-batch or a sequence by a factor of 1.5 moves no
# left-out error by half a point.
START = replace(
    H200_RATES,
    matmul_share=0.8,
    float32_matmul_share=0.8,
    float32_attention_share=0.5,
    kernel_seconds=2e-6,
    product_seconds=4e-6,
    host=Host(
        launch_seconds=20e-6,
        addition_seconds=10e-6,
        micro_batch_seconds=0.5e-3,
        sequence_seconds=0.05e-3,
        update_seconds=1e-3,
        tensor_seconds=10e-6,
        step_seconds=2e-3,
        stumble_seconds=15e-6,
    ),
    costs=replace(H200_RATES.costs, pointwise_flops=1000, loss_flops=100, dropout_flops=300),
    power=None,  # the other numbers include what it costs nanoGPT's kernels
)
SETTLED = 1e-6  # share of the squares: a round that gains less is the last
# A step's time counts most; kernels of one kind and updates alone separate the parts.
STEP_WEIGHT, MATMUL_WEIGHT, ATTENTION_WEIGHT, REST_WEIGHT, UPDATE_WEIGHT, PRIOR_WEIGHT = 1.0, 0.5, 0.3, 0.4, 0.3, 0.03


def kernels(config: RunConfig) -> float:
    """Kernels that run in one step, as predicted."""
    work, micros = nanogpt_step(config, config.dtype, H200_RATES.costs, H200), config.gradient_accumulation_steps
    return micros * work.micro_batch.whole.runs + (micros - 1) * work.accumulation.runs + work.update.runs


def update_alone_seconds(config: RunConfig, card: Card, rates: Rates) -> float:
    """Seconds of an update on an idle card: AdamW runs when the host is done, clipping before that."""
    work, unclipped = (
        nanogpt_step(each, each.dtype, rates.costs, device_of(card))
        for each in (config, config.replace({"grad_clip": 0.0}))
    )
    adamw = work_seconds(unclipped.update, card, rates, matmul_flops_per_second(card, rates, config.dtype))
    return host_update_seconds(work, rates.host) + adamw


def paced(rates: Rates, row: Row) -> Rates:
    """The rates at the pace of a row's processor."""
    host = {name: row.pace * getattr(rates.host, name) for name in HOST_NAMES}
    return replace(rates, host=Host(**host))


def residuals(rates: Rates, rows: Iterable[Row]) -> list[float]:
    """Weighted logarithms of predicted over measured."""
    found = []
    for row in rows:
        rates_here = paced(rates, row)
        times = step_times(row.config, row.card, rates_here, row.trainer)
        for weight, predicted, measured in (
            (STEP_WEIGHT, times.step, row.step_seconds),
            (MATMUL_WEIGHT, times.matmuls, row.matmul_seconds),
            (ATTENTION_WEIGHT, times.attention, row.attention_seconds),
            (REST_WEIGHT, times.memory_bound + times.loss + times.optimizer, row.rest_seconds),
            (UPDATE_WEIGHT, update_alone_seconds(row.config, row.card, rates_here), row.update_seconds),
        ):
            if measured:
                found.append(weight * math.log(predicted / measured))
    return found


def fitted(start: Rates, rows: list[Row], names: list[str], rounds: int = 25) -> Rates:
    """Rates with the named coefficients fitted to the rows by least squares, held loosely near where they start."""

    def owner(name: str) -> Host | Costs | Power | Rates:
        parts = (start.host, start.costs, start.power)
        return next((part for part in parts if part and name in part.__dataclass_fields__), start)

    def rates_at(logs: np.ndarray) -> Rates:
        values = {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}

        def moved(part: Host | Costs | Power | Rates) -> dict[str, float]:
            return {name: value for name, value in values.items() if owner(name) is part}

        power = replace(start.power, **moved(start.power)) if start.power else None
        host, costs = replace(start.host, **moved(start.host)), replace(start.costs, **moved(start.costs))
        return replace(start, **moved(start), host=host, costs=costs, power=power)

    origin = np.log([getattr(owner(name), name) for name in names])

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(rates_at(logs), rows), PRIOR_WEIGHT * (logs - origin)])

    here, step, damping = origin, 1e-4, 0.01
    now = errors(here)
    for _ in range(rounds):
        slopes = np.stack([(errors(here + step * unit) - now) / step for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ slopes
        move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ now)
        there = here + np.clip(move, -0.3, 0.3)
        then = errors(there)
        gained = 1 - (then @ then) / (now @ now)
        here, now, damping = (there, then, damping / 3) if gained > 0 else (here, now, damping * 4)
        if 0 < gained < SETTLED:
            break
    return rates_at(here)


def fit_h200(rows: list[Row], start: Rates = START) -> Rates:
    """The H200's rates; the bandwidth's share was read off single kernels and is not fitted."""
    return fitted(start, rows, [*RATE_NAMES, *HOST_NAMES, *COST_NAMES])


def fit_geforce(rows: list[Row]) -> Rates:
    """The GeForce rates: one number, the products' share of the published peak."""
    return fitted(replace(ADA_GEFORCE_RATES, matmul_share=1.0), rows, ["matmul_share"])


FITTED_N_EMBD = 768  # of the benched configs that are fitted
# Round values that the fit of the limit starts from and is loosely held to.
POWER_START = replace(
    H200_RATES,
    costs=replace(H200_RATES.costs, written_out_byte=0.85),
    power=Power(free_share=0.33, exponent=0.25, float16_exponent=0.25),
)


def fit_power() -> Rates:
    """The H200's rates, with the cost of the power limit fitted to steps of both trainers.

    Kernels of one profiled update, after a pause, ran at higher clocks. Of these, only kernels other than
    products and attention count. They separate `written_out_byte` from the limit.
    """
    ours = [replace(row, matmul_seconds=None, attention_seconds=None) for row in own_rows()]
    both = [row for row in benched_rows() if row.config.n_embd == FITTED_N_EMBD]
    return fitted(POWER_START, [*ours, *both], ["written_out_byte", *POWER_NAMES], rounds=40)


def fit_figures(rows: list[Row]) -> tuple[float, float, float]:
    """SLOWDOWN, TILE_BYTES_PER_FLOP and OLDER: least absolute logarithms, each card of the same weight.

    Single machines may be half as fast as others of their kind, and squares would follow them.
    """
    newer = [row for row in rows if row.card.compute_capability and row.card.compute_capability >= (8, 0)]
    older = [row for row in rows if row not in newer]

    def off(of: list[Row], figures: list[float]) -> float:
        errors: dict[str, list[float]] = {}
        for row in of:
            seconds = step_times(row.config, row.card, rates_by_figures(row.card, *figures)).step
            errors.setdefault(row.card.name, []).append(abs(math.log(seconds / (row.step_seconds or 0))))
        return sum(sum(each) / len(each) for each in errors.values())

    here = [SLOWDOWN, TILE_BYTES_PER_FLOP, OLDER]
    for of, moved in ((newer, (0, 1)), (older, (2,))):
        step = 0.2
        while of and step > 0.005:
            tried = [
                [*here[:i], here[i] * factor, *here[i + 1 :]] for i in moved for factor in (1 + step, 1 / (1 + step))
            ]
            best = min(tried, key=lambda figures: off(of, figures))
            if off(of, best) < off(of, here) - 1e-9:
                here = best
            else:
                step /= 2
    return here[0], here[1], here[2]
