"""Training settings that follow from size and length: rules of thumb, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, log2, sqrt
from typing import Any

# GPT-3 (arXiv 2005.14165), table 2.1: parameters and learning rate, half a million tokens per update
GPT3_LEARNING_RATES = ((125e6, 6e-4), (350e6, 3e-4), (760e6, 2.5e-4), (1.3e9, 2e-4))
HIGHEST_LEARNING_RATE = 1.2e-3  # best of three tried at 124M with 32,768 tokens per update (docs/explain/speed.md)
USUAL_TOKENS_PER_STEP = 524_288
HIGHEST_BETA2 = 0.9999  # averages over 10,000 updates: more than most runs have
USUAL_BETA2 = 0.95  # nanoGPT's, at that many
SMALLEST_TOKENS_PER_STEP = 32_768
SHORT_STEPS = 1000  # of which 100 of warm-up are a tenth


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value and where it comes from."""

    value: Any
    source: str


def learning_rate(params: int) -> Setting:
    """AdamW's highest learning rate for a model of `params`, in two digits."""
    rate = float(f"{usual_learning_rate(params):.2g}")
    return Setting(value=rate, source="GPT-3 table 2.1, interpolated; below 125M with 1/sqrt(params)")


def usual_learning_rate(params: int) -> float:
    """GPT-3's learning rate for a model of `params`, interpolated on both logarithms."""
    points = GPT3_LEARNING_RATES
    if params <= points[0][0]:
        return min(HIGHEST_LEARNING_RATE, points[0][1] * sqrt(points[0][0] / params))
    below = max((point for point in points if point[0] <= params), key=lambda point: point[0])
    above = min((point for point in points if point[0] > params), key=lambda point: point[0], default=below)
    share = 0.0 if above == below else log(params / below[0]) / log(above[0] / below[0])
    return exp(log(below[1]) + share * log(above[1] / below[1]))


def tokens_per_step(total_tokens: int) -> Setting:
    """Tokens per update: half a million for long runs, fewer where that would leave under 4,000 updates."""
    wanted = 2 ** round(log2(max(1, total_tokens / 4000)))
    value = max(SMALLEST_TOKENS_PER_STEP, min(USUAL_TOKENS_PER_STEP, wanted))
    return Setting(value=value, source="GPT-3's half million, or fewer to make some 4,000 updates (arXiv 2507.07101)")


def beta2(step_tokens: int, usual: float = USUAL_BETA2) -> Setting:
    """AdamW's second decay, in four decimals, that averages over as many tokens as `usual` does at half a million."""
    value = usual ** (step_tokens / USUAL_TOKENS_PER_STEP)
    return Setting(
        value=min(HIGHEST_BETA2, round(value, 4)),
        source=f"{usual:g} at 524,288 tokens, the same half-life in tokens (arXiv 2507.07101)",
    )


def warmup(steps: int) -> Setting:
    """Updates of warm-up."""
    if steps < SHORT_STEPS:
        return Setting(value=steps // 20, source="5 % of a run so short that 100 updates are more than a tenth")
    return Setting(value=max(100, min(2000, round(steps * 0.03))), source="3 % of the run, between 100 and 2,000")
