"""Training settings that follow from size and length: rules of thumb, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

from onecard.config.recipes import recipe_values
from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params

# GPT-3 (arXiv 2005.14165), table 2.1: parameters and learning rate, half a million tokens per update
GPT3_LEARNING_RATES = ((125e6, 6e-4), (350e6, 3e-4), (760e6, 2.5e-4), (1.3e9, 2e-4))
HIGHEST_LEARNING_RATE = 1.2e-3  # best of three tried at 124M with 32,768 tokens per update
USUAL_TOKENS_PER_STEP = 524_288
HIGHEST_BETA2 = 0.9999  # averages over 10,000 updates: more than most runs have
USUAL_BETA2 = 0.95  # nanoGPT's, at USUAL_TOKENS_PER_STEP
SMALLEST_TOKENS_PER_STEP = 32_768
ENOUGH_STEPS = 3000  # updates; if large updates would leave fewer, they are made smaller
SHORT_STEPS = 1000  # below this, 100 updates of warm-up are more than a tenth


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value and where it comes from."""

    value: Any
    source: str


def settings_of_training(config: RunConfig) -> dict[str, Setting]:
    """Rates, schedule and averages: what the run's recipe says; under nanoGPT's, what suits its size and length."""
    of_recipe = recipe_values(config.recipe, config.model_dump())
    if of_recipe:
        return {key: Setting(value=value, source=f"recipe {config.recipe}") for key, value in of_recipe.items()}
    rate, steps = learning_rate(count_params(config).total), config.max_iters
    return {
        "learning_rate": rate,
        "min_lr": min_lr(rate.value),
        "lr_decay_iters": Setting(value=steps, source="equal to max_iters (Chinchilla, appendix B)"),
        "warmup_iters": warmup(steps),
        "beta2": beta2(config.tokens_per_step),
    }


def learning_rate(params: int) -> Setting:
    """AdamW's highest learning rate for a model of `params`, rounded to two digits."""
    rate = float(f"{usual_learning_rate(params):.2g}")
    return Setting(value=rate, source=_rate_source(params))


def min_lr(highest: float) -> Setting:
    """The final learning rate, rounded to two digits, because 0.0012 / 10 is 0.00011999999999999999."""
    return Setting(value=float(f"{highest / 10:.2g}"), source="a tenth of the highest (Chinchilla)")


def _rate_source(params: int) -> str:
    (smallest, highest), *_, (largest, lowest) = GPT3_LEARNING_RATES
    if params > largest:
        return f"GPT-3 table 2.1: {lowest:g} at {largest / 1e9:g}B, the lowest we use"
    if params > smallest:
        return "GPT-3 table 2.1, interpolated"
    scaled = _scaled_rate(params)
    below = f"GPT-3's {highest:g} at {smallest / 1e6:g}M with 1/sqrt(params)"
    if scaled <= HIGHEST_LEARNING_RATE:
        return below
    return f"the best of three we tried at 124M, and the highest we use; {below} would be {scaled:.2g}"


def _scaled_rate(params: int) -> float:
    smallest, highest = GPT3_LEARNING_RATES[0]
    return highest * sqrt(smallest / params)


def usual_learning_rate(params: int) -> float:
    """GPT-3's learning rate for a model of `params`, interpolated on logarithmic scales."""
    points = GPT3_LEARNING_RATES
    if params <= points[0][0]:
        return min(HIGHEST_LEARNING_RATE, _scaled_rate(params))
    below = max((point for point in points if point[0] <= params), key=lambda point: point[0])
    above = min((point for point in points if point[0] > params), key=lambda point: point[0], default=below)
    share = 0.0 if above == below else log(params / below[0]) / log(above[0] / below[0])
    return exp(log(below[1]) + share * log(above[1] / below[1]))


def sequences_per_step(block_size: int) -> list[int]:
    """The choices for sequences per update: 32,768 tokens, twice as many, and so on up to half a million."""
    choices = [max(1, SMALLEST_TOKENS_PER_STEP // block_size)]
    while 2 * choices[-1] * block_size <= USUAL_TOKENS_PER_STEP:
        choices.append(2 * choices[-1])
    return choices


def tokens_per_step_source(block_size: int, sequences: int, steps: int) -> str:
    """Why a run of `steps` updates has this many `sequences` per update."""
    choices = sequences_per_step(block_size)
    if sequences == choices[-1]:
        return "GPT-3's half million tokens per update"
    if steps >= ENOUGH_STEPS:
        return f"fewer tokens per update than GPT-3's half million, for {ENOUGH_STEPS:,} updates (arXiv 2507.07101)"
    return f"{sequences * block_size:,} tokens per update, the fewest: the run is short (arXiv 2507.07101)"


def beta2(step_tokens: int, usual: float = USUAL_BETA2) -> Setting:
    """AdamW's beta2, in four decimals. It averages over as many tokens as `usual` does at half a million per update."""
    value = usual ** (step_tokens / USUAL_TOKENS_PER_STEP)
    return Setting(
        value=min(HIGHEST_BETA2, round(value, 4)),
        source=f"{usual:g} at 524,288 tokens, the same half-life in tokens (arXiv 2507.07101)",
    )


def warmup(steps: int) -> Setting:
    """The number of warm-up updates."""
    if steps < SHORT_STEPS:
        return Setting(value=steps // 20, source="5 % of a short run: 100 updates would be more than a tenth")
    return Setting(value=max(100, min(2000, round(steps * 0.03))), source="3 % of the run, between 100 and 2,000")
