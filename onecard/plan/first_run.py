"""The packaged default, made larger for a card: what `onecard train` runs without a config on a machine with a GPU.

The doctor has no warnings about its settings (tests/unit/test_first_run.py checks this).
"""

from __future__ import annotations

from math import ceil

from onecard.config.schema import RunConfig
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import fit_onecard

SECONDS = 120  # of predicted training time, at most
TOKENS_PER_STEP = recipe.SMALLEST_TOKENS_PER_STEP  # gives many updates, so that a warm-up of 100 is not too long
FEWEST_STEPS = 100  # fewer steps show nothing
TOKENS_PER_PARAMETER = 2.5  # with fewer, a large model learns less than a smaller one: a rule of thumb
PASSES = 4  # over the data, at most: up to there repeated data is nearly as good as new (arXiv 2305.16264)
INTERVALS = 4  # between five evaluations: one before the first update, three on the way, one after the last
EVALUATION_SHARE = 0.05  # of the time, if a token took as long as in training; it takes less
# Wide shapes use a large card better: the plan predicts the same speed for 13M in 4 layers of 512 and 11M in 6 of 384.
SHAPES = (
    (12, 12, 768, 1024),
    (12, 8, 512, 1024),
    (8, 8, 512, 512),
    (4, 8, 512, 512),
    (6, 6, 384, 512),
    (4, 4, 256, 256),
)


def first_run(
    config: RunConfig, card: Card, available_bytes: int, *, train_tokens: int, val_tokens: int
) -> RunConfig | None:
    """The largest shape that learns something in two minutes, with micro-batches that fit; None if there is none."""
    most_steps = PASSES * train_tokens // TOKENS_PER_STEP
    if most_steps < FEWEST_STEPS:
        return None
    for n_layer, n_head, n_embd, block_size in SHAPES:
        shape = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "block_size": block_size}
        sequences = TOKENS_PER_STEP // block_size
        larger = config.replace({**shape, "batch_size": sequences, "gradient_accumulation_steps": 1})
        fit = fit_onecard(larger, card, available_bytes)
        speed = fit.best.speed if fit.best else None
        if not fit.best or not speed:
            continue
        in_time = int(SECONDS * speed.tokens_per_second.likely / TOKENS_PER_STEP)
        steps = min(max(FEWEST_STEPS, in_time), most_steps)
        params = count_params(larger).total
        enough = min(in_time, most_steps) * TOKENS_PER_STEP >= TOKENS_PER_PARAMETER * params
        if not enough and (n_layer, n_head, n_embd, block_size) != SHAPES[-1]:
            continue
        run = fit.best.config.replace({"max_iters": steps})
        return run.replace(
            {
                "dtype": config.dtype,
                **{key: setting.value for key, setting in recipe.settings_of_training(run).items()},
                "eval_interval": ceil(steps / INTERVALS),
                "eval_iters": _eval_iters(fit.best.config, steps, val_tokens),
                "log_interval": max(1, steps // 40),
            }
        )
    return None


def _eval_iters(config: RunConfig, steps: int, val_tokens: int) -> int:
    """Micro-batches per split in an evaluation: as many as the validation data has and the share of time allows."""
    splits_read = 2 * (INTERVALS + 1)
    affordable = EVALUATION_SHARE / (1 - EVALUATION_SHARE) * steps * TOKENS_PER_STEP / splits_read
    return max(1, int(min(affordable, val_tokens) / (config.batch_size * config.block_size)))
