"""Runs that start from trained weights: the weights fix the shape, so only the choice of weights is free."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.config.resolve import resolve
from onecard.config.schema import GPT2_SHAPE_KEYS, RunConfig

OPENAI_WEIGHTS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # smallest first
OF_WEIGHTS = tuple(key for key in GPT2_SHAPE_KEYS if key != "block_size")  # a run may use a shorter context


def smaller_weights(config: RunConfig) -> Iterator[RunConfig]:
    """The same run from each smaller set of OpenAI's weights, the largest first; nothing for other weights."""
    if config.init_from not in OPENAI_WEIGHTS:
        return
    for name in reversed(OPENAI_WEIGHTS[: OPENAI_WEIGHTS.index(config.init_from)]):
        weights = resolve(f"init_from = {name!r}").config
        yield config.replace({"init_from": name, **{key: getattr(weights, key) for key in OF_WEIGHTS}})
