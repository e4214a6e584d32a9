"""The packaged default, made larger for a card: what `onecard train` does with no config where there is a GPU."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import fit_onecard

SECONDS = 120  # of training, as predicted
TOKENS_PER_STEP = 65_536
TOKENS_PER_PARAMETER = 4  # fewer would teach the larger model less than a smaller one learns
PASSES = 4  # over the data at most: repeated data is nearly as good as new up to there (arXiv 2305.16264)
SHAPES = ((12, 12, 768, 1024), (12, 8, 512, 1024), (8, 8, 512, 512), (6, 6, 384, 512), (4, 4, 256, 256))


def first_run(config: RunConfig, card: Card, available_bytes: int, *, train_tokens: int) -> RunConfig | None:
    """The largest shape that learns something in two minutes, in the micro-batches that fit; None if nothing does."""
    for n_layer, n_head, n_embd, block_size in SHAPES:
        shape = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "block_size": block_size}
        sequences = TOKENS_PER_STEP // block_size
        larger = config.replace({**shape, "batch_size": sequences, "gradient_accumulation_steps": 1})
        fit = fit_onecard(larger, card, available_bytes)
        speed = fit.best.speed if fit.best else None
        if not fit.best or not speed:
            continue
        tokens = min(SECONDS * speed.tokens_per_second.likely, PASSES * train_tokens)
        params = count_params(larger).total
        if tokens < TOKENS_PER_PARAMETER * params and (n_layer, n_head, n_embd, block_size) != SHAPES[-1]:
            continue
        steps = max(100, round(tokens / TOKENS_PER_STEP))
        rate = float(recipe.learning_rate(params).value)
        return fit.best.config.replace(
            {
                "dtype": config.dtype,
                "max_iters": steps,
                "lr_decay_iters": steps,
                "warmup_iters": steps // 20,
                "learning_rate": rate,
                "min_lr": rate / 10,
                "beta2": recipe.beta2(TOKENS_PER_STEP).value,
                "eval_interval": max(1, steps // 4),
                "log_interval": max(1, steps // 40),
            }
        )
    return None
