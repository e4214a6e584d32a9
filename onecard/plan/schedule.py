"""The learning rate and Muon's momentum of every update: pure functions of the config."""

from __future__ import annotations

import math

from onecard.config.schema import KEYS, SCHEDULE_KEYS, RunConfig

RATE_KEYS = tuple(key for key in SCHEDULE_KEYS if KEYS[key].nanogpt)  # what says the rate in a run of nanoGPT's


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of the update from `step` to `step + 1`: nanoGPT's for iteration number `step`.

    nanoGPT's warm-up starts above zero: update 0 has 1 / (warmup_iters + 1) of the full rate, and update warmup_iters
    is the first with the full rate.
    """
    return scheduled(config.learning_rate, config, step)


def scheduled(highest: float, config: RunConfig, step: int) -> float:
    """The same for parameters with another highest rate: all rates rise and fall in proportion."""
    if not config.decay_lr:
        return highest
    if step < config.warmup_iters:
        return highest * (step + 1) / (config.warmup_iters + 1)
    lowest = config.min_lr * (highest / config.learning_rate if config.learning_rate else 1.0)
    if step >= config.lr_decay_iters:  # at lr_decay_iters the cosine is already at its end, so nanoGPT's > is the same
        return lowest
    share = _cosine_share(config, step) if config.schedule == "cosine" else _stable_decay_share(config, step)
    return lowest + share * (highest - lowest)


FIRST_MOMENTUM = 0.85  # where a warm-up of Muon's momentum begins (modded-nanogpt, nanochat)


def muon_momentum(config: RunConfig, step: int) -> float:
    """Muon's momentum in the update from `step` to `step + 1`: old gradients mislead most while weights move fast."""
    if step >= config.muon_momentum_warmup or config.muon_momentum <= FIRST_MOMENTUM:
        return config.muon_momentum
    return FIRST_MOMENTUM + (config.muon_momentum - FIRST_MOMENTUM) * step / config.muon_momentum_warmup


def _cosine_share(config: RunConfig, step: int) -> float:
    """1 at the end of the warm-up, 0 at lr_decay_iters, half a cosine in between."""
    done = (step - config.warmup_iters) / (config.lr_decay_iters - config.warmup_iters)
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _stable_decay_share(config: RunConfig, step: int) -> float:
    """1 until the last part of lr_decay_iters (or the end of a longer warm-up), then a straight line to 0.

    A fifth is usual: Hägele et al. 2024, arXiv 2405.18392.
    """
    start = max(config.warmup_iters, config.lr_decay_iters - round(config.decay_share * config.lr_decay_iters))
    if step <= start:
        return 1.0
    return (config.lr_decay_iters - step) / (config.lr_decay_iters - start)
